//! The command line of `keelson`: what was asked for, read and checked, then handed to the crates that do it.

mod args;
mod config_command;
mod fd_store;
mod image;
mod limits;
mod logging;
mod memory;
mod notify;
mod overlay;
mod pods;
mod run;
mod sources;
mod table;
mod why;

#[cfg(test)]
mod tests;

use std::io::Write;

use clap::ArgMatches;

/// Does what the arguments say. A failure is one line on stderr for each problem and exit status 1; a usage error, as
/// clap prints it, is exit status 2.
pub fn run() -> anyhow::Result<()> {
    let matches = args::command().get_matches();
    let Err(error) = dispatch(&matches) else { return Ok(()) };
    if error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe) {
        // Whoever read our output has seen enough.
        return Ok(());
    }
    eprint!("{}", report(&error));
    std::process::exit(1);
}

/// The error with its causes, each line in the program's name.
fn report(error: &anyhow::Error) -> String {
    let lines = keelson_kit::error_chain::chain(error.as_ref());
    lines.lines().map(|line| format!("keelson: {line}\n")).collect()
}

fn dispatch(matches: &ArgMatches) -> anyhow::Result<()> {
    match matches.subcommand() {
        None => run::run(matches),
        Some(("run", matches)) => run::run(matches),
        Some(("config", matches)) => config_command::print(matches, &mut std::io::stdout().lock()),
        Some(("pods", matches)) => pods::pods(matches),
        Some(("why", matches)) => why::why(matches),
        Some(("overlay", matches)) => overlay::overlay(matches),
        Some(("image", matches)) => match matches.subcommand() {
            Some(("pack", matches)) => image::pack_command(matches),
            _ => Ok(()),
        },
        Some(("version", _)) => Ok(writeln!(std::io::stdout(), "keelson {}", version())?),
        Some((other, _)) => anyhow::bail!("there is no command {other}"),
    }
}

pub(crate) fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
