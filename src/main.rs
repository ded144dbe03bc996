//! The `keelson` executable: flags, configuration, build, run. Everything else lives in the crates beside it.

fn main() -> anyhow::Result<()> {
    keelson_cli::run()
}
