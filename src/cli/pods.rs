//! `keelson pods`: what runs here, now or as it changes, and `keelson pods wait`.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::ArgMatches;
use jiff::Timestamp;
use keelson_core::config::Period;
use keelson_core::view::{PodRow, REFUSED};
use keelson_server::client;

use crate::table::{Width, table};

pub(crate) fn pods(matches: &ArgMatches) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match matches.subcommand() {
            Some(("wait", matches)) => wait(matches).await,
            _ => show(matches).await,
        }
    })
}

pub(crate) fn socket(matches: &ArgMatches) -> PathBuf {
    matches
        .get_one::<PathBuf>("socket")
        .cloned()
        .unwrap_or_else(|| keelson_core::config::DEFAULT_SOCKET.into())
}

fn of_namespace(mut rows: Vec<PodRow>, matches: &ArgMatches) -> Vec<PodRow> {
    if let Some(namespace) = matches.get_one::<String>("namespace") {
        // What a refused manifest would have been is not known.
        rows.retain(|row| row.namespace == *namespace || row.phase == REFUSED);
    }
    rows
}

async fn show(matches: &ArgMatches) -> anyhow::Result<()> {
    let format = matches.get_one::<String>("output").map_or("table", String::as_str);
    let mut out = std::io::stdout();
    if !matches.get_flag("watch") {
        let rows = of_namespace(client::pods(&socket(matches)).await?, matches);
        match format {
            "json" => writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?,
            _ if rows.is_empty() => eprintln!("no pods on this node"),
            _ => out.write_all(table(&rows, Timestamp::now(), width(format)).as_bytes())?,
        }
        return Ok(());
    }
    let mut snapshots = client::watch_pods(&socket(matches)).await?;
    let mut shown = BTreeMap::new();
    let mut first = true;
    while let Some(rows) = snapshots.next().await? {
        let rows = of_namespace(rows, matches);
        if format == "json" {
            writeln!(out, "{}", serde_json::to_string(&rows)?)?;
            out.flush()?;
            continue;
        }
        let changed = changes(&mut shown, rows);
        if changed.is_empty() && !first {
            continue;
        }
        let text = table(&changed, Timestamp::now(), width(format));
        let text = if first { text.as_str() } else { text.split_once('\n').map_or("", |(_, rows)| rows) };
        out.write_all(text.as_bytes())?;
        out.flush()?;
        first = false;
    }
    bail!("the agent has ended")
}

/// A terminal shows a row as a line; whoever reads from a pipe gets all of it.
fn width(format: &str) -> Width {
    if format == "wide" {
        return Width::Wide;
    }
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 => Width::Columns(size.ws_col.into()),
        _ => Width::Whole,
    }
}

/// The rows that are new or different since last time; one that went is shown as Gone.
fn changes(shown: &mut BTreeMap<String, PodRow>, rows: Vec<PodRow>) -> Vec<PodRow> {
    let now: BTreeMap<String, PodRow> = rows.into_iter().map(|row| (row.uid.clone(), row)).collect();
    let mut changed: Vec<PodRow> =
        now.iter().filter(|(uid, row)| shown.get(*uid) != Some(row)).map(|(_, row)| row.clone()).collect();
    for (uid, row) in shown.iter() {
        if !now.contains_key(uid) {
            changed.push(PodRow { phase: "Gone".into(), ready_containers: 0, ready: false, ..row.clone() });
        }
    }
    *shown = now;
    changed
}

async fn wait(matches: &ArgMatches) -> anyhow::Result<()> {
    let names: Vec<String> = matches.get_many::<String>("name").into_iter().flatten().cloned().collect();
    let timeout = matches.get_one::<String>("timeout").map_or("120s", String::as_str);
    let timeout: Period = timeout.parse().context("--timeout")?;
    let mut last = vec![];
    let wanted = if matches.get_flag("gone") { remaining } else { missing };
    let waiting = until(wanted, matches, &names, &mut last);
    match tokio::time::timeout(timeout.get(), waiting).await {
        Ok(result) => result,
        Err(_) => {
            for row in &last {
                eprintln!("{}", progress(row));
            }
            bail!("still waiting after {timeout}: {}", wanted(&last, &names))
        }
    }
}

/// What is still to be waited for, in words; empty when there is nothing.
type Wanted = fn(&[PodRow], &[String]) -> String;

async fn until(
    wanted: Wanted,
    matches: &ArgMatches,
    names: &[String],
    last: &mut Vec<PodRow>,
) -> anyhow::Result<()> {
    let mut snapshots = client::watch_pods(&socket(matches)).await?;
    let mut shown = BTreeMap::new();
    let terminal = std::io::stderr().is_terminal();
    while let Some(rows) = snapshots.next().await? {
        let mut rows = of_namespace(rows, matches);
        rows.retain(|row| names.is_empty() || names.contains(&row.name));
        for row in changes(&mut shown, rows.clone()) {
            let (bold, plain) = if terminal { ("\u{1b}[1m", "\u{1b}[0m") } else { ("", "") };
            eprintln!("{bold}{}{plain}", progress(&row));
        }
        *last = rows;
        if wanted(last, names).is_empty() {
            return Ok(());
        }
    }
    bail!("the agent has ended")
}

fn remaining(rows: &[PodRow], _: &[String]) -> String {
    let left: Vec<String> =
        rows.iter().map(|row| format!("{}/{} is there", row.namespace, row.name)).collect();
    left.join(", ")
}

fn missing(rows: &[PodRow], names: &[String]) -> String {
    let mut problems: Vec<String> = rows
        .iter()
        .filter(|row| !row.ready && row.phase != "Succeeded")
        .map(|row| format!("{}/{} is {}", row.namespace, row.name, row.phase))
        .collect();
    for name in names {
        if !rows.iter().any(|row| row.name == *name) {
            problems.push(format!("there is no pod {name}"));
        }
    }
    if rows.is_empty() && names.is_empty() {
        problems.push("there are no pods".into());
    }
    problems.join(", ")
}

fn progress(row: &PodRow) -> String {
    let line = table(std::slice::from_ref(row), Timestamp::now(), Width::Whole);
    line.lines().nth(1).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, ready: bool) -> PodRow {
        PodRow {
            uid: name.into(),
            namespace: "default".into(),
            name: name.into(),
            source: "file".into(),
            phase: if ready { "Running" } else { "Pending" }.into(),
            ready_containers: 0,
            containers: 1,
            ready,
            restarts: 0,
            ip: None,
            created_at: None,
            reason: String::new(),
        }
    }

    #[test]
    fn waiting_ends_only_when_every_named_pod_is_there_and_ready() {
        let name = |name: &str| vec![name.to_owned()];
        assert_eq!(missing(&[], &[]), "there are no pods");
        assert_eq!(missing(&[], &name("a")), "there is no pod a");
        assert_eq!(missing(&[row("a", false)], &[]), "default/a is Pending");
        assert_eq!(missing(&[row("a", true)], &name("a")), "");
        assert_eq!(missing(&[row("a", true), row("b", false)], &[]), "default/b is Pending");
    }

    #[test]
    fn a_watch_shows_what_changed_and_what_went() {
        let mut shown = BTreeMap::new();
        let names = |rows: Vec<PodRow>| rows.into_iter().map(|row| (row.name, row.phase)).collect::<Vec<_>>();
        let pair = |name: &str, phase: &str| (name.to_owned(), phase.to_owned());
        assert_eq!(names(changes(&mut shown, vec![row("a", false), row("b", true)])).len(), 2);
        assert!(changes(&mut shown, vec![row("a", false), row("b", true)]).is_empty());
        let next = changes(&mut shown, vec![row("a", true)]);
        assert_eq!(names(next), [pair("a", "Running"), pair("b", "Gone")]);
    }
}
