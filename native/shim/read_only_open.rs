//! Loaded into QEMU before its libraries. QEMU opens the file of its RAM for writing even where it maps it privately and never
//! writes to it (up to version 8.1 it knows no other way), and a jailed one may only read that file. So here an `open` for
//! writing that is refused becomes one for reading. This is no wall: what may be written is decided by the jail's mounts.
#![no_std]

use core::ffi::{c_char, c_int, c_long};

const OPENAT: c_long = 257;
const AT_FDCWD: c_int = -100;
const WRONLY: c_int = 1;
const RDWR: c_int = 2;
const CREAT: c_int = 0o100;
const EACCES: c_int = 13;
const EROFS: c_int = 30;

#[link(name = "c")]
unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn __errno_location() -> *mut c_int;
}

/// # Safety
/// As of open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: u32) -> c_int {
    let opened = unsafe { syscall(OPENAT, AT_FDCWD, path, flags, mode) } as c_int;
    let refused = opened < 0 && [EACCES, EROFS].contains(unsafe { &*__errno_location() });
    if !refused || flags & (RDWR | WRONLY | CREAT) != RDWR {
        return opened;
    }
    unsafe { syscall(OPENAT, AT_FDCWD, path, flags & !RDWR, mode) as c_int }
}

/// The same, where the compiler has checked that no mode is missing.
///
/// # Safety
/// As of open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __open64_2(path: *const c_char, flags: c_int) -> c_int {
    unsafe { open64(path, flags, 0) }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
