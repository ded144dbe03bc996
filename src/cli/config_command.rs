//! `keelson config`: what the agent would run by.

use std::io::Write;

use clap::ArgMatches;
use keelson_core::config::{KubeletConfiguration, Support};

pub(crate) fn print(matches: &ArgMatches, out: &mut impl Write) -> anyhow::Result<()> {
    if matches.get_flag("explain") {
        writeln!(
            out,
            "Accepted, so that a kubelet's configuration loads, but not acted on by this version, or not in full:"
        )?;
        for field in KubeletConfiguration::declared() {
            match field.support {
                Support::ActedOn => {}
                Support::Partly(missing) => writeln!(out, "  {}: {missing}", field.name())?,
                Support::NotActedOn => writeln!(out, "  {}", field.name())?,
            }
        }
        return Ok(());
    }
    let settings = crate::sources::settings(matches)?;
    match matches.get_one::<String>("output").map(String::as_str) {
        Some("json") => writeln!(out, "{}", serde_json::to_string_pretty(&settings.kubelet)?)?,
        _ => {
            write!(out, "{}", serde_saphyr::to_string(&settings.kubelet)?)?;
            // Outside of the API's type, so as comments: the output stays a file that can be used with --config.
            writeln!(out, "# node name: {}", settings.node_name)?;
            writeln!(out, "# root directory: {}", settings.paths.root_dir.display())?;
            writeln!(out, "# local socket: {}", settings.paths.local_socket.display())?;
            match &settings.kubeconfig {
                Some(path) => writeln!(out, "# kubeconfig: {}", path.display())?,
                None => writeln!(out, "# standalone: no kubeconfig")?,
            }
            if let Some(path) = &settings.paths.static_pod_path {
                writeln!(out, "# manifests: {}", path.display())?;
            }
            if let Some(path) = &settings.paths.image_dir {
                writeln!(out, "# image archives: {}", path.display())?;
            }
            for field in &settings.not_acted_on {
                writeln!(out, "# not acted on: {field}")?;
            }
        }
    }
    Ok(())
}
