//! Reads the files that the flags name, and has the core make settings of them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::ArgMatches;
use keelson_core::config::{CONFIG_FLAGS, ConfigInput, ConfigText, NodeFlags, Settings, load};

/// A configuration is a few kilobytes; a device or a log given by mistake is not read to its end.
const MOST_BYTES: u64 = 1 << 20;

pub(crate) fn settings(matches: &ArgMatches) -> anyhow::Result<Settings> {
    let settings = load(&input(matches)?)?;
    require_kubeconfig(matches, &settings)?;
    require_plugins(&settings)?;
    Ok(settings)
}

fn input(matches: &ArgMatches) -> anyhow::Result<ConfigInput> {
    let path = |name| matches.get_one::<PathBuf>(name).cloned();
    let given = |name| path(name).filter(|path| !path.as_os_str().is_empty());
    let text = |name| matches.get_one::<String>(name).cloned();
    let mut flags = vec![];
    for flag in CONFIG_FLAGS.iter() {
        for given in matches.get_many::<String>(flag.name).into_iter().flatten() {
            flags.push((flag, given.clone()));
        }
    }
    let labels: Vec<_> = matches.get_many::<String>("node-labels").into_iter().flatten().cloned().collect();
    Ok(ConfigInput {
        config: path("config").map(|path| read(&path)).transpose()?,
        drop_ins: match path("config-dir") {
            Some(directory) => drop_ins(&directory)?,
            None => vec![],
        },
        flags,
        node: NodeFlags {
            kubeconfig: path("kubeconfig").filter(|path| !path.as_os_str().is_empty()),
            hostname_override: text("hostname-override").filter(|name| !name.is_empty()),
            node_ip: text("node-ip"),
            node_labels: Some(labels.join(",")),
            root_dir: path("root-dir"),
            cert_dir: path("cert-dir"),
            cloud_provider: text("cloud-provider"),
            runtime_cgroups: text("runtime-cgroups"),
            local_socket: path("socket"),
            image_dir: given("image-dir"),
            credential_provider_config: given("image-credential-provider-config")
                .map(|path| credential_providers(&path))
                .transpose()?,
            credential_provider_bin_dir: given("image-credential-provider-bin-dir"),
        },
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
    })
}

/// kubeadm's unit always names a bootstrap file; it only matters while there is no kubeconfig yet.
fn require_kubeconfig(matches: &ArgMatches, settings: &Settings) -> anyhow::Result<()> {
    let bootstrap = matches.get_one::<PathBuf>("bootstrap-kubeconfig");
    match (&settings.kubeconfig, bootstrap) {
        (Some(path), _) if path.exists() => Ok(()),
        (Some(path), Some(bootstrap)) => bail!(
            "--kubeconfig {}: no such file, and making it from --bootstrap-kubeconfig {} is not supported yet: \
             put a kubeconfig with the node's credentials there",
            path.display(),
            bootstrap.display()
        ),
        (Some(path), None) => bail!("--kubeconfig {}: no such file", path.display()),
        (None, Some(_)) => bail!("--bootstrap-kubeconfig needs --kubeconfig, which is what it would make"),
        (None, None) => Ok(()),
    }
}

/// A file, or a directory of which every *.json, *.yaml and *.yml is read, by name.
fn credential_providers(path: &Path) -> anyhow::Result<Vec<ConfigText>> {
    if !path.is_dir() {
        return Ok(vec![read(path)?]);
    }
    let listing = || format!("cannot list the directory of credential providers {}", path.display());
    let mut files = vec![];
    for entry in fs::read_dir(path).with_context(listing)? {
        let file = entry.with_context(listing)?.path();
        let extension = file.extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("json" | "yaml" | "yml")) && !file.is_dir() {
            files.push(file);
        }
    }
    if files.is_empty() {
        bail!("no *.json, *.yaml or *.yml in the directory of credential providers {}", path.display());
    }
    files.sort();
    files.iter().map(|file| read(file)).collect()
}

/// A plugin that is not there would otherwise be noticed by the first pod that needs it.
fn require_plugins(settings: &Settings) -> anyhow::Result<()> {
    for provider in &settings.credential_providers {
        let program = settings.paths.credential_provider_bin_dir.join(&provider.name);
        let flags = rustix::fs::Access::EXEC_OK;
        if !program.is_file() || rustix::fs::access(&program, flags).is_err() {
            bail!(
                "credential provider {}: {} is no program that can be run",
                provider.name,
                program.display()
            );
        }
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<ConfigText> {
    let name = path.display().to_string();
    let metadata = fs::metadata(path).with_context(|| format!("cannot read {name}"))?;
    if !metadata.is_file() || metadata.len() > MOST_BYTES {
        bail!("{name} is not a configuration: it must be a file of at most 1 MiB");
    }
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    Ok(ConfigText { name, text })
}

/// Every *.conf below the directory, in the order of a walk that takes the entries of each directory by name.
fn drop_ins(directory: &Path) -> anyhow::Result<Vec<ConfigText>> {
    let listing = || format!("cannot list the drop-in directory {}", directory.display());
    let mut entries = fs::read_dir(directory)
        .with_context(listing)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .with_context(listing)?;
    entries.sort();
    let mut texts = vec![];
    for path in entries {
        if path.is_dir() {
            texts.extend(drop_ins(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "conf") {
            texts.push(read(&path)?);
        }
    }
    Ok(texts)
}
