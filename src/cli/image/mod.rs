//! `keelson image pack`: an OCI archive from a small description, so that images can be made where there is no
//! registry, no builder and no network. The same input gives the same bytes.

mod pack;
mod spec;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::ArgMatches;

pub(crate) fn pack_command(matches: &ArgMatches) -> anyhow::Result<()> {
    let path = |name: &str| matches.get_one::<PathBuf>(name).cloned().unwrap_or_default();
    let (spec, out) = (path("spec"), path("output"));
    let text = std::fs::read_to_string(&spec).with_context(|| format!("cannot read {}", spec.display()))?;
    let images = spec::parse(&spec.display().to_string(), &text)?;
    let base = spec.parent().map(std::path::Path::to_owned).unwrap_or_default();
    let names = pack::pack(&images, &base, &out)?;
    Ok(writeln!(std::io::stdout(), "{}", names.join("\n"))?)
}

#[cfg(test)]
mod tests;
