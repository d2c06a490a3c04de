//! Writes the RAM of a VM that stands still into a file: what differs from the image it started from, or all of it.

use crate::copy;
use crate::guest_ram::{self, read_living, Region, PAGE};
use crate::process;
use crate::protocol::{Capture, Failure, Reply};
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};

/// How much is read and written at a time.
const CHUNK: u64 = 1 << 20;
const NICE: i32 = 10;

pub fn capture(request: &Capture) -> Result<Reply, Failure> {
    let failed = |e: Error| Failure::io("capture the RAM", &e);
    if request.background {
        // SAFETY: plain integers; it is for this thread alone, which ends with the capture.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid() as u32, NICE) };
    }
    // Opened before the process is looked at, so that it is this one that is read to the end.
    let memory = File::open(format!("/proc/{}/mem", request.pid)).map_err(|e| failed(gone_if_absent(e)))?;
    let pagemap = File::open(format!("/proc/{}/pagemap", request.pid)).map_err(|e| failed(gone_if_absent(e)))?;
    process::check(request.pid, request.start_time).map_err(failed)?;
    let regions = guest_ram::regions(request.pid, &request.memory).map_err(failed)?;
    let image = copy::open(&request.memory).map_err(failed)?;
    let to = copy::create(&request.to).map_err(|e| Failure::io("create the capture", &e))?;
    let size = image.metadata().map_err(failed)?.len();
    let done = Writer { memory, image, to, size, dirty: 0, written: Vec::new() }.run(&pagemap, &regions, request.full);
    done.map_err(|e| {
        let _ = std::fs::remove_file(&request.to);
        failed(e)
    })
}

fn gone_if_absent(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::from_raw_os_error(libc::ESRCH),
        _ => error,
    }
}

struct Writer {
    memory: File,
    image: File,
    to: File,
    /// Of the image, and so of the result.
    size: u64,
    dirty: u64,
    /// Ranges of the result, in order.
    written: Vec<(u64, u64)>,
}

impl Writer {
    fn run(mut self, pagemap: &File, regions: &[Region], full: bool) -> Result<Reply, Error> {
        guest_ram::check_whole(regions, self.size)?;
        if full {
            copy::fill(&self.image, &self.to)?;
        } else {
            self.to.set_len(self.size)?;
        }
        let mut buffers = (vec![0; CHUNK as usize], vec![0; CHUNK as usize]);
        for region in regions {
            guest_ram::for_each_written(pagemap, *region, |range| {
                for start in (range.start..range.end).step_by(CHUNK as usize) {
                    let length = CHUNK.min(range.end - start) as usize;
                    let (now, before) = (&mut buffers.0[..length], &mut buffers.1[..length]);
                    read_living(&self.memory, now, start)?;
                    let offset = range.offset + (start - range.start);
                    self.image.read_exact_at(before, offset)?;
                    self.write(offset, now, before)?;
                }
                self.dirty += range.end - range.start;
                Ok(())
            })?;
        }
        if !full {
            self.fill_blocks()?;
        }
        self.to.sync_all()?;
        Ok(Reply::Captured {
            dirty_bytes: self.dirty,
            written_bytes: self.written.iter().map(|(start, end)| end - start).sum(),
            physical_bytes: self.to.metadata()?.blocks() * 512,
        })
    }

    /// Writes the pages that differ, a run of them at a time; also those that are zero now, for a hole says that nothing changed.
    fn write(&mut self, offset: u64, now: &[u8], before: &[u8]) -> Result<(), Error> {
        for (first, last) in differing(now, before) {
            let (start, end) = (offset + first, offset + last);
            self.to.write_all_at(&now[first as usize..last as usize], start)?;
            add(&mut self.written, start, end);
        }
        Ok(())
    }

    /// Where the file system keeps data in blocks larger than a page, what lies beside a page is no hole. There the result must
    /// say what the image says.
    fn fill_blocks(&self) -> Result<(), Error> {
        for (start, end) in without(&copy::extents(&self.to)?, &self.written) {
            copy::copy_range(&self.image, &self.to, start, end)?;
        }
        Ok(())
    }
}

/// Runs of pages in which the two are not the same: start, and end.
fn differing(now: &[u8], before: &[u8]) -> Vec<(u64, u64)> {
    let mut runs = Vec::new();
    for (index, (a, b)) in (0..).zip(now.chunks(PAGE as usize).zip(before.chunks(PAGE as usize))) {
        if a != b {
            add(&mut runs, index * PAGE, (index + 1) * PAGE);
        }
    }
    runs
}

/// Appends a range, as a part of the one before if it follows at once.
fn add(runs: &mut Vec<(u64, u64)>, start: u64, end: u64) {
    match runs.last_mut() {
        Some((_, last)) if *last == start => *last = end,
        _ => runs.push((start, end)),
    }
}

/// What of some ranges is in none of the others. Both are in order, and the others may only overlap at the edges.
fn without(ranges: &[(u64, u64)], others: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut rest = Vec::new();
    let mut others = others.iter().copied().peekable();
    for &(mut start, end) in ranges {
        while let Some(&(from, to)) = others.peek().filter(|(from, _)| *from < end) {
            if start < from {
                rest.push((start, from));
            }
            start = start.max(to);
            if to > end {
                break;
            }
            others.next();
        }
        if start < end {
            rest.push((start, end));
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_differ_come_in_runs_also_when_they_became_zero() {
        let page = |byte| vec![byte; PAGE as usize];
        let before = [page(1), page(2), page(3), page(0)].concat();
        let now = [page(1), page(0), page(9), page(0)].concat();
        assert_eq!(differing(&now, &before), [(PAGE, 3 * PAGE)]);
        assert_eq!(differing(&before, &before), []);
    }

    #[test]
    fn what_lies_beside_is_what_was_not_written() {
        assert_eq!(without(&[(0, 8)], &[]), [(0, 8)]);
        assert_eq!(without(&[(0, 8)], &[(0, 8)]), []);
        assert_eq!(without(&[(0, 8), (16, 24)], &[(2, 3), (4, 5), (16, 20)]), [(0, 2), (3, 4), (5, 8), (20, 24)]);
        assert_eq!(without(&[(0, 4), (4, 8)], &[(2, 6)]), [(0, 2), (6, 8)]);
    }
}
