//! A report for a person: what is waited for, a timeline with bars, where the time went, what failed.

use std::time::Duration;

use jiff::Timestamp;
use keelson_core::timeline::{FailureReport, StageReport, StepReport, WaitReport, WhyReport};

use crate::table::{aligned, shown};

/// How wide a bar is that takes all of a stage.
const BAR: usize = 30;

pub(super) fn page(report: &WhyReport, terminal: bool) -> String {
    let (bold, plain) = if terminal { ("\u{1b}[1m", "\u{1b}[0m") } else { ("", "") };
    let name = match report.namespace.as_str() {
        "" => shown(&report.name),
        namespace => format!("{}/{}", shown(namespace), shown(&report.name)),
    };
    let mut text = format!("{bold}{name}{plain} is {}\n", shown(&headline(report)));
    if !report.uid.is_empty() {
        text.push_str(&format!("uid {}\n", shown(&report.uid)));
    }
    for other in &report.others {
        let state = match &other.gone_at {
            Some(at) => format!("is gone since {}", time(at)),
            None => "is here too".to_owned(),
        };
        text.push_str(&format!("another pod of this name {state}: keelson why {}\n", shown(&other.uid)));
    }
    text.push_str(&format!("\n{bold}NOW{plain}\n"));
    match report.now.is_empty() {
        true => text.push_str("  it waits for nothing\n"),
        false => report.now.iter().for_each(|wait| text.push_str(&waiting(wait, &report.at))),
    }
    for stage in &report.stages {
        text.push_str(&format!("\n{bold}{}{plain}\n{}", heading(stage), timeline(stage)));
    }
    if report.left_out > 0 {
        let line = format!("\n{} steps are not shown: the pod has more than are kept\n", report.left_out);
        text.push_str(&line);
    }
    if !report.failures.is_empty() {
        text.push_str(&format!("\n{bold}LAST FAILURES{plain}\n"));
        report.failures.iter().for_each(|f| text.push_str(&failure(f, &report.at)));
    }
    text
}

fn headline(report: &WhyReport) -> String {
    match report.phase.as_str() {
        "Gone" => report.summary.clone(),
        phase if report.summary.starts_with(phase) => report.summary.clone(),
        phase => format!("{phase}, {}", report.summary),
    }
}

fn waiting(wait: &WaitReport, now: &str) -> String {
    let of = wait.container.as_ref().map_or(String::new(), |name| format!("{}: ", shown(name)));
    let since = wait.since.as_ref().and_then(|at| between(at, now)).map(|s| format!(", for {}", span(s)));
    let retry = wait.retry_in_seconds.map(|s| match s > 0.0 {
        true => format!("; next try in {}", span(s)),
        false => "; next try now".to_owned(),
    });
    format!(
        "  {of}{}{}\n    {}{}\n",
        shown(&wait.what),
        since.unwrap_or_default(),
        shown(&wait.then),
        retry.unwrap_or_default()
    )
}

fn heading(stage: &StageReport) -> String {
    let what = match stage.stage.as_str() {
        "start" => "START",
        "since" => "SINCE THEN",
        "stop" => "STOP",
        other => other,
    };
    let end = match (&stage.ended_at, stage.seconds) {
        (_, None) => "before this agent was started".to_owned(),
        (Some(_), Some(seconds)) => format!("{} in all", span(seconds)),
        (None, Some(seconds)) => format!("{} so far", span(seconds)),
    };
    format!("{what}  {}, {end}", time(&stage.began_at))
}

fn timeline(stage: &StageReport) -> String {
    let ends = stage.steps.iter().map(|s| s.offset_seconds + spread(s));
    let whole = ends.fold(stage.seconds.unwrap_or(0.0), f64::max);
    let mut lines = vec![];
    for step in &stage.steps {
        let (name, container) = (shown(&step.step), step.container.as_deref().map_or(String::new(), shown));
        let bar = if step.seconds.is_some() { bar(step, whole) } else { String::new() };
        let took = step.seconds.map_or_else(|| "-".to_owned(), |s| at_most(step, s));
        let at = match step.seconds {
            Some(_) => format!("+{:.3}", step.offset_seconds),
            None => time(&step.began_at),
        };
        let place = step.place.as_deref().map_or(String::new(), shown);
        let lead = format!("  {name}");
        lines.push(vec![lead, container, at, took, bar, format!("{place}{}", remarks(step))]);
    }
    let mut text = aligned(&lines);
    if !stage.places.is_empty() {
        let shares: Vec<String> =
            stage.places.iter().map(|p| format!("{} {}", shown(&p.place), span(p.seconds))).collect();
        text.push_str(&format!("  the time went to: {}\n", shares.join(", ")));
    }
    text
}

fn at_most(step: &StepReport, seconds: f64) -> String {
    if step.at_most { format!("\u{2264} {}", span(seconds)) } else { span(seconds) }
}

/// From its beginning to its end, with what went by between tries.
fn spread(step: &StepReport) -> f64 {
    let took = step.seconds.unwrap_or(0.0);
    step.ended_at.as_ref().and_then(|end| between(&step.began_at, end)).map_or(took, |s| s.max(took))
}

fn bar(step: &StepReport, whole: f64) -> String {
    if whole <= 0.0 {
        return String::new();
    }
    let column = |seconds: f64| ((seconds / whole * BAR as f64).round() as usize).min(BAR);
    let from = column(step.offset_seconds).min(BAR - 1);
    let to = column(step.offset_seconds + spread(step)).max(from + 1);
    let mark = if step.failed_tries > 0 { "\u{2592}" } else { "\u{2588}" };
    format!("|{}{}{}|", " ".repeat(from), mark.repeat(to - from), " ".repeat(BAR - to))
}

fn remarks(step: &StepReport) -> String {
    let mut all = vec![];
    match step.result.as_str() {
        "running" => all.push("still going on".to_owned()),
        "failed" => all.push("failed".to_owned()),
        "givenUp" => all.push("given up".to_owned()),
        _ => {}
    }
    match step.failed_tries {
        0 => {}
        1 => all.push("1 failed try".to_owned()),
        tries => all.push(format!("{tries} failed tries")),
    }
    all.extend(step.note.as_deref().map(shown));
    let mut text = if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) };
    if step.slowest {
        text.push_str("  \u{25c0} slowest");
    }
    text
}

fn failure(f: &FailureReport, now: &str) -> String {
    let of = f.container.as_ref().map_or(String::new(), |name| format!(" of {}", shown(name)));
    let ago = between(&f.last_at, now).map_or_else(|| time(&f.last_at), |s| format!("{} ago", span(s)));
    let count =
        if f.count > 1 { format!(", {} times since {}", f.count, time(&f.first_at)) } else { String::new() };
    format!("  {ago}{count}: {}{of} ({}): {}\n", shown(&f.step), shown(&f.place), shown(&f.cause))
}

fn parse(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

fn between(from: &str, to: &str) -> Option<f64> {
    Some(parse(to)?.duration_since(parse(from)?).as_secs_f64().max(0.0))
}

/// To the millisecond, in UTC.
pub(super) fn time(text: &str) -> String {
    match parse(text) {
        Some(at) => at.strftime("%Y-%m-%d %H:%M:%S%.3fZ").to_string(),
        None => shown(text),
    }
}

pub(super) fn span(seconds: f64) -> String {
    keelson_core::timeline::span(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}
