//! Writes what `capture` has written over the RAM of a VM that has not run yet: it then is where the captured one stood.

use crate::copy;
use crate::guest_ram::{self, Region};
use crate::process;
use crate::protocol::{Failure, Inject, Reply};
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt;

const CHUNK: u64 = 1 << 20;

pub fn inject(request: &Inject) -> Result<Reply, Failure> {
    run(request).map_err(|e| Failure::io("inject the RAM", &e))
}

fn run(request: &Inject) -> Result<Reply, Error> {
    process::check(request.pid, request.start_time)?;
    let regions = guest_ram::regions(request.pid, &request.memory)?;
    let from = copy::open(&request.from)?;
    check_size(&regions, from.metadata()?.len())?;
    let mut bytes = 0;
    for (start, end) in copy::extents(&from)? {
        for region in &regions {
            bytes += write(request.pid, &from, *region, start, end)?;
        }
    }
    Ok(Reply::Injected { bytes })
}

/// One that is larger or smaller than the RAM was made of another VM.
fn check_size(regions: &[Region], size: u64) -> Result<(), Error> {
    let ram = regions.iter().map(|region| region.offset + (region.end - region.start)).max().unwrap_or_default();
    if size == ram {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidData, format!("{size} bytes do not belong to a RAM of {ram}")))
}

/// Writes the part of a range of the file that belongs to a region.
fn write(pid: i32, from: &File, region: Region, start: u64, end: u64) -> Result<u64, Error> {
    let (start, end) = (start.max(region.offset), end.min(region.offset + (region.end - region.start)));
    let mut buffer = vec![0; CHUNK.min(end.saturating_sub(start)) as usize];
    let mut at = start;
    while at < end {
        let length = CHUNK.min(end - at) as usize;
        from.read_exact_at(&mut buffer[..length], at)?;
        poke(pid, region.start + (at - region.offset), &buffer[..length])?;
        at += length as u64;
    }
    Ok(end.saturating_sub(start))
}

fn poke(pid: i32, address: u64, bytes: &[u8]) -> Result<(), Error> {
    let local = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
    // SAFETY: only reads the bytes; the other address is one of another process.
    match unsafe { libc::process_vm_writev(pid, &local, 1, &remote, 1, 0) } {
        n if n == bytes.len() as isize => Ok(()),
        n if n < 0 => Err(Error::last_os_error()),
        _ => Err(Error::from_raw_os_error(libc::ESRCH)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_the_size_of_the_ram_is_taken() {
        let regions =
            [Region { start: 0x1000, end: 0x3000, offset: 0 }, Region { start: 0x9000, end: 0xa000, offset: 0x2000 }];
        assert!(check_size(&regions, 0x3000).is_ok());
        assert!(check_size(&regions, 0x4000).is_err());
        assert!(check_size(&regions, 0x2000).is_err());
        assert!(check_size(&[], 0x1000).is_err());
    }
}
