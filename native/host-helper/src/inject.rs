//! Writes what `capture` has written over the RAM of a VM that has not run yet: it then is where the captured one stood.

use crate::copy;
use crate::guest_ram::{self, Region};
use crate::process;
use crate::protocol::{Failure, Inject, Reply};
use std::fs::File;
use std::io::Error;
use std::os::unix::fs::FileExt;

const CHUNK: u64 = 1 << 20;

pub fn inject(request: &Inject) -> Result<Reply, Failure> {
    run(request).map_err(|e| Failure::io("inject the RAM", &e))
}

fn run(request: &Inject) -> Result<Reply, Error> {
    process::check(request.pid, request.start_time)?;
    let regions = guest_ram::regions(request.pid, &request.memory)?;
    let from = copy::open(&request.from)?;
    guest_ram::check_whole(&regions, from.metadata()?.len())?;
    let mut bytes = 0;
    for (start, end) in copy::extents(&from)? {
        for region in &regions {
            bytes += write(request.pid, &from, *region, start, end)?;
        }
    }
    Ok(Reply::Injected { bytes })
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
