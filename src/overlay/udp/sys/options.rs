//! Socket options by number.
#![allow(unsafe_code)] // setsockopt and getsockopt take pointers; no safe wrapper knows these options.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

pub fn set<T: Copy>(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: T) -> io::Result<()> {
    // SAFETY: the pointer and length describe `value`, which lives until the call returns.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(&value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub fn get_int(fd: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer and length describe `value`; the kernel writes no more than that.
    let status = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, option, std::ptr::from_mut(&mut value).cast(), &mut length)
    };
    if status == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}
