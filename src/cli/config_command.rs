//! `keelson config`: what the agent would run by.

use std::io::Write;

use clap::ArgMatches;
use keelson_core::config::NOT_ACTED_ON;

pub(crate) fn print(matches: &ArgMatches, out: &mut impl Write) -> anyhow::Result<()> {
    if matches.get_flag("explain") {
        writeln!(
            out,
            "Accepted, so that a kubelet's configuration loads, but not acted on by this version:"
        )?;
        for field in NOT_ACTED_ON {
            writeln!(out, "  {field}")?;
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
            writeln!(out, "# root directory: {}", settings.root_dir.display())?;
            writeln!(out, "# local socket: {}", settings.local_socket.display())?;
            match &settings.kubeconfig {
                Some(path) => writeln!(out, "# kubeconfig: {}", path.display())?,
                None => writeln!(out, "# standalone: no kubeconfig")?,
            }
            if let Some(path) = &settings.static_pod_path {
                writeln!(out, "# manifests: {}", path.display())?;
            }
            for field in &settings.not_acted_on {
                writeln!(out, "# not acted on: {field}")?;
            }
        }
    }
    Ok(())
}
