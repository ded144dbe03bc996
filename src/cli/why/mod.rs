//! `keelson why`: what a pod waits for, and where the time of its life went.

mod svg;
#[cfg(test)]
mod tests;
mod text;

use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::Context;
use clap::ArgMatches;
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
    let name = file.file_name().with_context(|| format!("--svg {}: this names no file", file.display()))?;
    let mut half = name.to_owned();
    half.push(format!(".{}.half", std::process::id()));
    let half = file.with_file_name(half);
    let written = std::fs::write(&half, content).and_then(|()| std::fs::rename(&half, file));
    written.with_context(|| {
        // It may not be there, and what failed before is what counts.
        let _ = std::fs::remove_file(&half);
        format!("--svg {}: cannot be written", file.display())
    })
}
