//! The first process of every pod's sandbox: holds the namespaces open, buries the dead, and leaves on a signal.
//!
//! Built by rustc alone (see build.sh): no standard library, no C runtime, nothing but four system calls, so that the
//! image that every pod carries is a few kilobytes.
//!
//! The three signals are blocked and then waited for. A blocked signal is kept by the kernel even for the first process
//! of a pid namespace, whose unhandled signals are otherwise dropped, so no handler is needed.

#![no_std]
#![no_main]

use core::arch::{asm, global_asm};

const SIGINT: u64 = 2;
const SIGTERM: u64 = 15;
const SIGCHLD: u64 = 17;
const SIG_BLOCK: usize = 0;
const WNOHANG: usize = 1;
/// The kernel's signal set is one word of 64 bits.
const SET_BYTES: usize = 8;

const WAITED: u64 = 1 << (SIGINT - 1) | 1 << (SIGTERM - 1) | 1 << (SIGCHLD - 1);

#[cfg(target_arch = "x86_64")]
mod number {
    pub const SIGPROCMASK: usize = 14;
    pub const WAIT4: usize = 61;
    pub const SIGTIMEDWAIT: usize = 128;
    pub const EXIT_GROUP: usize = 231;
}
#[cfg(target_arch = "aarch64")]
mod number {
    pub const SIGPROCMASK: usize = 135;
    pub const WAIT4: usize = 260;
    pub const SIGTIMEDWAIT: usize = 137;
    pub const EXIT_GROUP: usize = 94;
}

// The kernel enters with the arguments on the stack; this program has none, it only aligns the stack for a call.
#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "xor ebp, ebp", "and rsp, -16", "call {main}", "ud2", main = sym main);
#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x29, #0", "bl {main}", "brk #1", main = sym main);

extern "C" fn main() -> ! {
    let waited = WAITED;
    let set = &raw const waited as usize;
    call(number::SIGPROCMASK, SIG_BLOCK, set, 0, SET_BYTES);
    loop {
        match call(number::SIGTIMEDWAIT, set, 0, 0, SET_BYTES) as u64 {
            SIGINT | SIGTERM => break,
            // One SIGCHLD may stand for many children. Anything else is an interruption by a stop and continue.
            _ => while call(number::WAIT4, usize::MAX, 0, WNOHANG, 0) > 0 {},
        }
    }
    loop {
        call(number::EXIT_GROUP, 0, 0, 0, 0);
    }
}

fn call(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: the calls used here read at most the signal set that outlives them, and write nothing.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
             out("rcx") _, out("r11") _, options(nostack));
        #[cfg(target_arch = "aarch64")]
        asm!("svc #0", in("x8") number, inlateout("x0") a as isize => result, in("x1") b, in("x2") c, in("x3") d,
             options(nostack));
    }
    result
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {
        call(number::EXIT_GROUP, 1, 0, 0, 0);
    }
}
