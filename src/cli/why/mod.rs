//! `keelson why`: what a pod waits for, and where the time of its life went.

mod svg;
#[cfg(test)]
mod tests;
mod text;

use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::Context;
use clap::ArgMatches;
use keelson_kit::whole_file;
use keelson_server::client;

use crate::pods::socket;

pub(crate) fn why(matches: &ArgMatches) -> anyhow::Result<()> {
    let pod = matches.get_one::<String>("pod").map_or("", String::as_str);
    let namespace = matches.get_one::<String>("namespace").map(String::as_str);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(client::why(&socket(matches), pod, namespace))?;
    if let Some(file) = matches.get_one::<std::path::PathBuf>("svg") {
        write_whole(file, &svg::draw(&report))?;
    }
    let mut out = std::io::stdout();
    match matches.get_one::<String>("output").map(String::as_str) {
        Some("json") => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
        _ => out.write_all(text::page(&report, out.is_terminal()).as_bytes())?,
    }
    Ok(())
}

/// Whoever looks at the file sees the old one or the new one, and never a half.
fn write_whole(file: &Path, content: &str) -> anyhow::Result<()> {
    let written = whole_file::replace(file, 0o666, |file| file.write_all(content.as_bytes()));
    written.with_context(|| format!("--svg {}", file.display()))
}
