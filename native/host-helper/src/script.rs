//! A list of system calls that a stopped thread makes in one go. One by one, each call would cost two switches between tracer and
//! tracee, and on a busy host every switch waits for its turn.

use crate::tracee::Tracee;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt;

/// Room for the code, about 400 calls and the bytes they refer to.
pub const SIZE: u64 = 64 << 10;
const TABLE: u64 = 256;
const DATA: u64 = 32 << 10;
/// Number, five arguments, result.
const ENTRY: u64 = 7 * 8;
const END: u64 = u64::MAX;

/// Walks the table at rbx: loads a row, makes the call, stores the result; traps at the end.
#[rustfmt::skip]
const CODE: &[u8] = &[
    0x48, 0x8b, 0x03,               // mov rax, [rbx]
    0x48, 0x83, 0xf8, 0xff,         // cmp rax, -1
    0x74, 0x20,                     // je  end
    0x48, 0x8b, 0x7b, 0x08,         // mov rdi, [rbx+8]
    0x48, 0x8b, 0x73, 0x10,         // mov rsi, [rbx+16]
    0x48, 0x8b, 0x53, 0x18,         // mov rdx, [rbx+24]
    0x4c, 0x8b, 0x53, 0x20,         // mov r10, [rbx+32]
    0x4c, 0x8b, 0x43, 0x28,         // mov r8,  [rbx+40]
    0x0f, 0x05,                     // syscall
    0x48, 0x89, 0x43, 0x30,         // mov [rbx+48], rax
    0x48, 0x83, 0xc3, 0x38,         // add rbx, 56
    0xeb, 0xd7,                     // jmp start
    0xcc,                           // end: int3
];

pub struct Script {
    page: u64,
    table: Vec<u8>,
    data: Vec<u8>,
    /// What each call must return; `None` where anything but an error will do.
    expected: Vec<(i64, Option<i64>)>,
}

impl Script {
    /// Maps the page a script runs from. Copies of the process inherit it.
    pub fn map_page(thread: &Tracee) -> Result<u64, Error> {
        let protection = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        thread.call(libc::SYS_mmap, [0, SIZE, protection, flags, u64::MAX]).map(|page| page as u64)
    }

    pub fn new(page: u64) -> Self {
        Script { page, table: Vec::new(), data: Vec::new(), expected: Vec::new() }
    }

    /// The address that `bytes` will have.
    pub fn data(&mut self, bytes: &[u8]) -> u64 {
        let address = self.page + DATA + self.data.len() as u64;
        self.data.extend_from_slice(bytes);
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        address
    }

    pub fn call(&mut self, number: i64, arguments: [u64; 5]) {
        self.row(number, arguments, None);
    }

    pub fn call_returning(&mut self, expected: i64, number: i64, arguments: [u64; 5]) {
        self.row(number, arguments, Some(expected));
    }

    fn row(&mut self, number: i64, arguments: [u64; 5], expected: Option<i64>) {
        self.expected.push((number, expected));
        for word in [number as u64].into_iter().chain(arguments).chain([0]) {
            self.table.extend_from_slice(&word.to_ne_bytes());
        }
    }

    /// Runs it in the thread, whose memory is `memory`. The first call that does not do what it should is the error.
    pub fn run(mut self, thread: &Tracee, memory: &File) -> Result<(), Error> {
        let rows = self.table.len();
        self.table.extend_from_slice(&END.to_ne_bytes());
        if TABLE + self.table.len() as u64 > DATA || DATA + self.data.len() as u64 > SIZE {
            return Err(Error::new(ErrorKind::OutOfMemory, "too many descriptors"));
        }
        memory.write_all_at(CODE, self.page)?;
        memory.write_all_at(&self.table, self.page + TABLE)?;
        memory.write_all_at(&self.data, self.page + DATA)?;
        thread.run_until_trap(self.page, self.page + TABLE)?;
        memory.read_exact_at(&mut self.table[..rows], self.page + TABLE)?;
        for (row, (number, expected)) in self.table[..rows].chunks_exact(ENTRY as usize).zip(&self.expected) {
            let result = i64::from_ne_bytes(row[48..].try_into().expect("eight bytes"));
            if (-4095..0).contains(&result) {
                let error = Error::from_raw_os_error(-result as i32);
                return Err(Error::new(error.kind(), format!("system call {number}: {error}")));
            }
            if expected.is_some_and(|expected| expected != result) {
                return Err(Error::other(format!("system call {number} returned {result}, not {expected:?}")));
            }
        }
        Ok(())
    }
}
