//! RFC 3339 in both directions, UTC out. Civil dates from day numbers by the usual 400-year-era arithmetic.

use std::time::{SystemTime, UNIX_EPOCH};

pub fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

pub fn rfc3339(seconds: i64, nanos: u32) -> String {
    let (year, month, day) = civil(seconds.div_euclid(86_400));
    let second = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

/// Nanoseconds since 1970.
pub fn parse_rfc3339(text: &str) -> Option<i64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let punctuation = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if !punctuation.iter().all(|&(at, sign)| text.as_bytes().get(at) == Some(&sign)) {
        return None;
    }
    let days = day_number(number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let mut seconds = days * 86_400 + number(11, 13)? * 3600 + number(14, 16)? * 60 + number(17, 19)?;
    let rest = text.get(19..)?;
    let zone_at = rest.find(['Z', 'z', '+', '-'])?;
    let (fraction, zone) = rest.split_at(zone_at);
    let digits = fraction.strip_prefix('.').unwrap_or("");
    let nanos: i64 = format!("{digits:0<9}").get(..9)?.parse().ok()?;
    if let Some(offset) = zone.strip_prefix(['+', '-']) {
        let (hours, minutes) = offset.split_once(':')?;
        let offset = hours.parse::<i64>().ok()? * 3600 + minutes.parse::<i64>().ok()? * 60;
        seconds -= if zone.starts_with('-') { -offset } else { offset };
    }
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}

fn civil(day: i64) -> (i64, i64, i64) {
    let shifted = day + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn day_number(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways() {
        assert_eq!(rfc3339(951_782_400, 5), "2000-02-29T00:00:00.000000005Z");
        assert_eq!(parse_rfc3339("2000-02-29T00:00:00.000000005Z"), Some(951_782_400_000_000_005));
        assert_eq!(parse_rfc3339("2000-02-29T02:00:00.5+02:00"), Some(951_782_400_500_000_000));
        assert_eq!(parse_rfc3339("yesterday"), None);
        assert_eq!(parse_rfc3339(""), None);
    }
}
