//! Where the RAM of a guest is in its VMM, and which of its pages the guest has written. RAM is a private mapping of an image
//! that many VMs share: a page that was written is anonymous, every other one is still the image's.

use crate::process;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};

pub const PAGE: u64 = 4096;
/// Entries of the page map that are looked at in one go: 128 MiB of guest RAM.
const ENTRIES: u64 = 32 << 10;
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_A_FILE: u64 = 1 << 61;

/// A part of guest RAM: addresses in the VMM, and where in the image they begin.
#[derive(Debug, PartialEq, Clone, Copy)]
pub struct Region {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
}

/// The mappings of the image. A VM that was booted has it mapped to write to it, and nobody may rely on what it holds.
pub fn regions(pid: i32, image: &str) -> Result<Vec<Region>, Error> {
    let image = std::fs::metadata(image)?;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    // Not by its path: that ends with the mount namespace the image was opened in. A file system may show another number of
    // the device than it gives in `maps`, so it is asked.
    let found = parse(&maps, |start, end, inode| {
        let mapped = || std::fs::metadata(format!("/proc/{pid}/map_files/{start:x}-{end:x}")).ok();
        inode == image.ino() && mapped().is_some_and(|file| (file.dev(), file.ino()) == (image.dev(), image.ino()))
    })?;
    match found.is_empty() {
        true if maps.is_empty() || process::ending(pid) => Err(Error::from_raw_os_error(libc::ESRCH)),
        true => Err(Error::new(ErrorKind::NotFound, "the process does not have the image as its RAM")),
        false => Ok(found),
    }
}

/// `is_image` is asked about a range of addresses and the inode of the file that is mapped there.
fn parse(maps: &str, is_image: impl Fn(u64, u64, u64) -> bool) -> Result<Vec<Region>, Error> {
    let mut found = Vec::new();
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let mut field = || fields.next().ok_or(ErrorKind::InvalidData);
        let (range, flags, offset, _, inode) = (field()?, field()?, field()?, field()?, field()?);
        let number = |text| u64::from_str_radix(text, 16).map_err(|_| Error::from(ErrorKind::InvalidData));
        let (start, end) = range.split_once('-').ok_or(ErrorKind::InvalidData)?;
        let (start, end) = (number(start)?, number(end)?);
        if !is_image(start, end, inode.parse().map_err(|_| ErrorKind::InvalidData)?) {
            continue;
        }
        if !flags.ends_with('p') {
            return Err(Error::new(ErrorKind::InvalidInput, "its RAM is the image itself, not a copy of it"));
        }
        found.push(Region { start, end, offset: number(offset)? });
    }
    Ok(found)
}

/// A file of another size belongs to another VM; regions that are less have not all been found.
pub fn check_whole(regions: &[Region], size: u64) -> Result<(), Error> {
    let ram: u64 = regions.iter().map(|region| region.end - region.start).sum();
    if size == ram && size > 0 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidData, format!("{size} bytes do not belong to a RAM of {ram}")))
}

/// The ranges of a region that the guest has written, in order.
pub fn for_each_written(
    pagemap: &File,
    region: Region,
    mut use_range: impl FnMut(Region) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut bytes = vec![0; (ENTRIES * 8) as usize];
    let mut at = region.start;
    while at < region.end {
        let count = ENTRIES.min((region.end - at) / PAGE);
        let part = &mut bytes[..(count * 8) as usize];
        read_living(pagemap, part, at / PAGE * 8)?;
        for (first, last) in written(part) {
            let (start, end) = (at + first * PAGE, at + last * PAGE);
            use_range(Region { start, end, offset: region.offset + (start - region.start) })?;
        }
        at += count * PAGE;
    }
    Ok(())
}

/// Runs of entries that stand for pages of the process alone, in memory or swapped out: first, and first after.
fn written(entries: &[u8]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (index, entry) in (0..).zip(entries.chunks_exact(8)) {
        let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
        if entry & SWAPPED == 0 && entry & (PRESENT | OF_A_FILE) != PRESENT {
            continue;
        }
        match runs.last_mut() {
            Some((_, end)) if *end == index => *end += 1,
            _ => runs.push((index, index + 1)),
        }
    }
    runs
}

/// Reads from a file in /proc that ends when its process does.
pub fn read_living(file: &File, buffer: &mut [u8], at: u64) -> Result<(), Error> {
    file.read_exact_at(buffer, at).map_err(|error| match (error.kind(), error.raw_os_error()) {
        (ErrorKind::UnexpectedEof, _) | (_, Some(libc::EIO)) => Error::from_raw_os_error(libc::ESRCH),
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn pages_that_were_written_come_in_runs() {
        let (mine, file, nothing) = (PRESENT | 7, PRESENT | OF_A_FILE | 7, 0);
        assert_eq!(written(&entries(&[])), []);
        assert_eq!(written(&entries(&[nothing, file])), []);
        assert_eq!(written(&entries(&[mine, mine, file, mine])), [(0, 2), (3, 4)]);
        assert_eq!(written(&entries(&[nothing, mine, SWAPPED, mine, nothing])), [(1, 4)]);
        assert_eq!(written(&entries(&[SWAPPED | OF_A_FILE])), [(0, 1)]);
    }

    #[test]
    fn only_what_has_the_size_of_the_ram_is_taken() {
        let regions =
            [Region { start: 0x1000, end: 0x3000, offset: 0 }, Region { start: 0x9000, end: 0xa000, offset: 0x2000 }];
        assert!(check_whole(&regions, 0x3000).is_ok());
        assert!(check_whole(&regions, 0x4000).is_err());
        assert!(check_whole(&regions, 0x2000).is_err());
        assert!(check_whole(&regions[1..], 0x3000).is_err());
        assert!(check_whole(&[], 0).is_err());
    }

    #[test]
    fn the_image_is_found_in_all_its_parts() {
        let maps = "1000-3000 rw-p 00000000 fd:00 12   /a b/memory.img\n\
                    3000-4000 rw-p 00002000 fd:00 12   /\n\
                    8000-9000 rw-p 00000000 fd:00 13   /a b/memory.img.old\n\
                    9000-a000 rw-p 00000000 00:00 0 \n";
        let part = |start, end, offset| Region { start, end, offset };
        let of = |wanted| parse(maps, move |_, _, inode| inode == wanted).unwrap();
        assert_eq!(of(12), [part(0x1000, 0x3000, 0), part(0x3000, 0x4000, 0x2000)]);
        assert_eq!(of(14), []);
        assert!(parse("1000-2000 rw-s 00000000 fd:00 12 /memory.img", |_, _, inode| inode == 12).is_err());
    }
}
