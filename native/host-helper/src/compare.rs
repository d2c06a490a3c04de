//! Counts the pages in which the RAM of two snapshots differs.

use crate::copy;
use crate::guest_ram::PAGE;
use crate::protocol::{Compare, Failure, Reply, SavedRam};
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};

const CHUNK: u64 = 1 << 20;

pub fn compare(request: &Compare) -> Result<Reply, Failure> {
    run(request).map_err(|e| Failure::io("compare the RAM", &e))
}

fn run(request: &Compare) -> Result<Reply, Error> {
    let (a, b) = (Ram::open(&request.a)?, Ram::open(&request.b)?);
    if a.size != b.size {
        return Err(Error::new(ErrorKind::InvalidData, "the two are not of the same size"));
    }
    let (mut first, mut second) = (vec![0; CHUNK as usize], vec![0; CHUNK as usize]);
    let mut changed = 0;
    for start in (0..a.size).step_by(CHUNK as usize) {
        let end = a.size.min(start + CHUNK);
        // Over one image only what lies over it can differ.
        if a.image_id == b.image_id && !a.touches(start, end) && !b.touches(start, end) {
            continue;
        }
        let length = (end - start) as usize;
        a.read(&mut first[..length], start)?;
        b.read(&mut second[..length], start)?;
        let pages = first[..length].chunks(PAGE as usize).zip(second[..length].chunks(PAGE as usize));
        changed += pages.filter(|(one, other)| one != other).count() as u64;
    }
    Ok(Reply::Compared { pages: a.size / PAGE, changed })
}

/// An image, and what lies over it.
struct Ram {
    image: File,
    image_id: (u64, u64),
    size: u64,
    diff: Option<(File, Vec<(u64, u64)>)>,
}

impl Ram {
    fn open(saved: &SavedRam) -> Result<Ram, Error> {
        let image = copy::open(&saved.memory)?;
        let about = image.metadata()?;
        let diff = match &saved.diff {
            Some(path) => {
                let file = copy::open(path)?;
                let extents = copy::extents(&file)?;
                Some((file, extents))
            }
            None => None,
        };
        Ok(Ram { image, image_id: (about.dev(), about.ino()), size: about.len(), diff })
    }

    fn extents(&self) -> impl Iterator<Item = &(u64, u64)> {
        self.diff.iter().flat_map(|(_, extents)| extents)
    }

    fn touches(&self, start: u64, end: u64) -> bool {
        self.extents().any(|(from, to)| *from < end && *to > start)
    }

    fn read(&self, into: &mut [u8], at: u64) -> Result<(), Error> {
        self.image.read_exact_at(into, at)?;
        let Some((file, extents)) = &self.diff else { return Ok(()) };
        let last = at + into.len() as u64;
        for (from, to) in extents.iter().filter(|(from, to)| *from < last && *to > at) {
            let (from, to) = ((*from).max(at), (*to).min(last));
            file.read_exact_at(&mut into[(from - at) as usize..(to - at) as usize], from)?;
        }
        Ok(())
    }
}
