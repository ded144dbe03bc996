//! Rows of pods as columns for a person.

use jiff::Timestamp;
use keelson_core::view::PodRow;

/// How much is shown of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    /// More columns, and every reason to its end.
    Wide,
    /// Every reason to its end.
    Whole,
    /// A row is a line of a terminal with so many columns; what is longer is cut.
    Columns(usize),
}

pub(crate) fn table(rows: &[PodRow], now: Timestamp, width: Width) -> String {
    let wide = width == Width::Wide;
    let mut lines: Vec<Vec<String>> = vec![headings(wide)];
    lines.extend(rows.iter().map(|row| cells(row, now, wide)));
    let text = aligned(&lines);
    match width {
        Width::Columns(columns) => text.lines().map(|line| cut(line, columns) + "\n").collect(),
        Width::Wide | Width::Whole => text,
    }
}

fn cut(line: &str, columns: usize) -> String {
    if line.chars().count() <= columns {
        return line.to_owned();
    }
    let mut kept: String = line.chars().take(columns.saturating_sub(1)).collect();
    kept.push('\u{2026}');
    kept
}

/// Lines of as many cells as the first has, in columns.
pub(crate) fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for line in lines {
        let mut printed = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            printed.push_str(&format!("{cell:width$}   ", cell = shown(cell)));
        }
        text.push_str(printed.trim_end());
        text.push('\n');
    }
    text
}

fn headings(wide: bool) -> Vec<String> {
    let mut columns = vec!["NAMESPACE", "NAME", "PHASE", "READY", "RESTARTS", "IP", "AGE"];
    if wide {
        columns.extend(["SOURCE", "UID"]);
    }
    columns.push("REASON");
    columns.into_iter().map(str::to_owned).collect()
}

fn cells(row: &PodRow, now: Timestamp, wide: bool) -> Vec<String> {
    let namespace = if row.namespace.is_empty() { "-" } else { &row.namespace };
    let mut cells = vec![
        shown(namespace),
        shown(&row.name),
        shown(&row.phase),
        format!("{}/{}", row.ready_containers, row.containers),
        row.restarts.to_string(),
        row.ip.as_deref().map_or_else(|| "-".into(), shown),
        age(row, now),
    ];
    if wide {
        cells.extend([shown(&row.source), shown(&row.uid)]);
    }
    cells.push(shown(&row.reason));
    cells
}

/// A reason comes from images, registries and scripts: control characters must not reach the terminal, and a row is
/// one line.
pub(crate) fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// As kubectl rounds it: two units at most, only the larger when it is large.
fn age(row: &PodRow, now: Timestamp) -> String {
    let Some(created) = row.created_at.as_deref().and_then(|text| text.parse::<Timestamp>().ok()) else {
        return "-".into();
    };
    let seconds = now.as_second().saturating_sub(created.as_second()).max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => match seconds % 60 {
            0 => format!("{minutes}m"),
            rest => format!("{minutes}m{rest}s"),
        },
        600..10800 => format!("{minutes}m"),
        10800..28800 => match minutes % 60 {
            0 => format!("{hours}h"),
            rest => format!("{hours}h{rest}m"),
        },
        28800..172800 => format!("{hours}h"),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(created: &str) -> PodRow {
        PodRow {
            uid: "u".into(),
            namespace: "default".into(),
            name: "web".into(),
            source: "file".into(),
            phase: "Pending".into(),
            ready_containers: 0,
            containers: 2,
            ready: false,
            restarts: 3,
            ip: None,
            created_at: Some(created.into()),
            reason: "app: image\u{1b}[31m\nnot found".into(),
        }
    }

    #[test]
    fn columns_line_up_and_a_reason_cannot_write_to_the_terminal() {
        let now: Timestamp = "2026-01-01T00:01:30Z".parse().unwrap();
        let text = table(&[row("2026-01-01T00:00:00Z")], now, Width::Whole);
        assert_eq!(
            text,
            "NAMESPACE   NAME   PHASE     READY   RESTARTS   IP   AGE   REASON\n\
             default     web    Pending   0/2     3          -    90s   app: image [31m not found\n"
        );
    }

    #[test]
    fn a_long_reason_ends_with_the_terminal() {
        let now: Timestamp = "2026-01-01T00:01:30Z".parse().unwrap();
        let rows = [PodRow { reason: "x".repeat(600), ..row("2026-01-01T00:00:00Z") }];
        let text = table(&rows, now, Width::Columns(80));
        let line = text.lines().nth(1).unwrap();
        assert_eq!(line.chars().count(), 80);
        assert!(line.ends_with("xx\u{2026}"), "{line}");
        for width in [Width::Whole, Width::Wide] {
            assert!(table(&rows, now, width).contains(&"x".repeat(600)), "{width:?}");
        }
    }

    #[test]
    fn ages_are_rounded_as_kubectl_rounds_them() {
        let now: Timestamp = "2026-01-31T00:00:00Z".parse().unwrap();
        for (created, expected) in [
            ("2026-01-31T00:00:00Z", "0s"),
            ("2026-01-31T00:00:05Z", "0s"),
            ("2026-01-30T23:57:30Z", "2m30s"),
            ("2026-01-30T23:00:00Z", "60m"),
            ("2026-01-30T20:30:00Z", "3h30m"),
            ("2026-01-30T00:00:00Z", "24h"),
            ("2026-01-01T00:00:00Z", "30d"),
            ("yesterday", "-"),
        ] {
            assert_eq!(age(&row(created), now), expected, "{created}");
        }
    }
}
