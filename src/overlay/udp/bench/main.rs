//! Figures of the overlay's data path, beside flanneld's, the kernel's vxlan and plain routing.

mod carry;
mod traffic;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match words.split_first() {
        Some((word, rest)) if word == "carry" => carry::run(rest),
        Some((word, rest)) if word == "flood" => traffic::flood(rest),
        Some((word, rest)) if word == "count" => traffic::count(rest),
        _ => Err("usage: bench-overlay carry DEVICE LISTEN OWN-SUBNET OTHERS [ENDPOINT=SUBNET...]".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-overlay: {error}");
            ExitCode::FAILURE
        }
    }
}
