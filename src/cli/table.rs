//! Rows of pods as columns for a person.

use jiff::Timestamp;
use keelson_core::view::PodRow;

pub(crate) fn table(rows: &[PodRow], now: Timestamp, wide: bool) -> String {
    let mut lines: Vec<Vec<String>> = vec![headings(wide)];
    lines.extend(rows.iter().map(|row| cells(row, now, wide)));
    aligned(&lines)
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
    let mut cells = vec![
        shown(&row.namespace),
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
        let text = table(&[row("2026-01-01T00:00:00Z")], now, false);
        assert_eq!(
            text,
            "NAMESPACE   NAME   PHASE     READY   RESTARTS   IP   AGE   REASON\n\
             default     web    Pending   0/2     3          -    90s   app: image [31m not found\n"
        );
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
