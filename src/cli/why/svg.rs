//! A report's timeline as a picture: a row for each step, a bar for its time.

use std::fmt::Write;

use keelson_core::timeline::{StageReport, StepReport, WhyReport};

use super::text::{span, time};

const WIDTH: f64 = 960.0;
/// Where bars begin and end; names are left of them, times right.
const LEFT: f64 = 230.0;
const RIGHT: f64 = 640.0;
const LINE: f64 = 22.0;

pub(super) fn draw(report: &WhyReport) -> String {
    let mut body = String::new();
    let mut y = 30.0;
    label(&mut body, 16.0, y, "title", &format!("{}/{}", report.namespace, report.name));
    y += LINE;
    label(&mut body, 16.0, y, "", &format!("{}: {} (uid {})", report.phase, report.summary, report.uid));
    for stage in &report.stages {
        y += 1.6 * LINE;
        label(&mut body, 16.0, y, "head", &heading(stage));
        y = steps(&mut body, stage, y);
    }
    for wait in &report.now {
        y += 1.2 * LINE;
        let of = wait.container.as_ref().map_or(String::new(), |name| format!("{name}: "));
        label(&mut body, 16.0, y, "wait", &format!("now: {of}{}; {}", wait.what, wait.then));
    }
    for failure in &report.failures {
        y += 1.2 * LINE;
        let of = failure.container.as_ref().map_or(String::new(), |name| format!(" of {name}"));
        let text = format!(
            "{}: {}{of} ({}): {}",
            time(&failure.last_at),
            failure.step,
            failure.place,
            failure.cause
        );
        label(&mut body, 16.0, y, "fail", &text);
    }
    let height = y + LINE;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">\n\
         <style>text {{ font: 13px sans-serif; fill: #222 }} .title {{ font-size: 18px; font-weight: bold }} \
         .head {{ font-weight: bold }} .wait {{ fill: #805500 }} .fail {{ fill: #a02020 }} \
         .bar {{ fill: #7a9cc6 }} .slowest {{ fill: #d9822b }} .broken {{ fill: #b85c5c }}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

fn heading(stage: &StageReport) -> String {
    let took = stage.seconds.map_or_else(|| "before this agent was started".to_owned(), span);
    format!("{}, {}: {took}", stage.stage, time(&stage.began_at))
}

/// Returns how far down the last one is.
fn steps(body: &mut String, stage: &StageReport, mut y: f64) -> f64 {
    let ends = stage.steps.iter().map(|s| s.offset_seconds + s.seconds.unwrap_or(0.0));
    let whole = ends.fold(stage.seconds.unwrap_or(0.0), f64::max).max(f64::MIN_POSITIVE);
    let scale = (RIGHT - LEFT) / whole;
    for step in &stage.steps {
        y += LINE;
        let of = step.container.as_ref().map_or(String::new(), |name| format!(" {name}"));
        label(body, 28.0, y, "", &format!("{}{of}", step.step));
        if let Some(seconds) = step.seconds {
            let (x, width) = (LEFT + step.offset_seconds * scale, (seconds * scale).max(1.5));
            // Written to a string, which does not fail.
            let _ = writeln!(
                body,
                "<rect class=\"{}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"14\"/>",
                class(step),
                y - 12.0
            );
        }
        label(body, RIGHT + 16.0, y, "", &figures(step));
    }
    y
}

fn class(step: &StepReport) -> &'static str {
    match step.result.as_str() {
        _ if step.slowest => "slowest",
        "failed" | "givenUp" => "broken",
        _ => "bar",
    }
}

fn figures(step: &StepReport) -> String {
    let Some(seconds) = step.seconds else { return time(&step.began_at) };
    let most = if step.at_most { "at most " } else { "" };
    let place = step.place.as_deref().unwrap_or_default();
    let slowest = if step.slowest { ", slowest" } else { "" };
    let failed =
        if step.failed_tries > 0 { format!(", {} failed", step.failed_tries) } else { String::new() };
    format!("{most}{} ({place}{failed}{slowest})", span(seconds))
}

/// The most that one line of text holds.
const LONGEST: usize = 150;

fn label(body: &mut String, x: f64, y: f64, class: &str, text: &str) {
    let _ = writeln!(body, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(text));
}

/// Names and causes come from anybody: what XML gives a meaning is spelled out, what it cannot hold is a blank.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for (index, c) in text.chars().enumerate() {
        if index >= LONGEST {
            out.push('\u{2026}');
            break;
        }
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
