//! Called as bridge, host-local, loopback or portmap: is that plugin. Called by its own name: takes the
//! plugin's name as its first argument.

use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use keelson_cni::skel::{self, Env};
use keelson_cni::{NAMES, plugin};

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let called = args.next().unwrap_or_default();
    let called = Path::new(&called).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(plugin) = plugin(&called).or_else(|| plugin(&args.next()?.to_string_lossy())) else {
        let _ = writeln!(
            io::stderr(),
            "keelson-cni {}: CNI plugins {}\n\
             Link this executable under a plugin's name, or give the name: keelson-cni bridge < conf.json\n\
             CNI protocol versions supported: {}",
            env!("CARGO_PKG_VERSION"),
            NAMES.join(", "),
            skel::supported_versions().join(", "),
        );
        return ExitCode::from(2);
    };
    let env = Env::of_process();
    // Asking for the version by hand should answer, and not wait for a configuration to be typed.
    let typed = env.get("CNI_COMMAND") == "VERSION" && io::stdin().is_terminal();
    let mut stdin: Box<dyn Read> = if typed { Box::new(io::empty()) } else { Box::new(io::stdin()) };
    ExitCode::from(skel::run(plugin, &env, &mut stdin, &mut io::stdout(), &mut io::stderr()))
}
