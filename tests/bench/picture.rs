//! The figures as a picture: one panel a figure, one bar a contender.

use std::fmt::Write;

use crate::report::{FLOOR, Figures, Row, number};

const COLUMNS: usize = 2;
const WIDTH: f64 = 460.0;
const BAR: f64 = 20.0;
const LABEL: f64 = 96.0;
const STEP: f64 = BAR + 6.0;

pub fn svg(figures: &Figures, many: u32) -> String {
    let rows = figures.rows(many);
    let height = 46.0 + figures.names().len() as f64 * STEP;
    let lines = rows.len().div_ceil(COLUMNS);
    let (w, h) = (WIDTH * COLUMNS as f64 + 20.0, height * lines as f64 + 60.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {w} {h}\" width=\"{w}\" height=\"{h}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"20\" y=\"32\" font-size=\"18\" font-weight=\"600\" fill=\"#1b2733\">Pods on one node: less is better</text>\n"
    );
    for (n, row) in rows.iter().enumerate() {
        let (x, y) = ((n % COLUMNS) as f64 * WIDTH + 20.0, (n / COLUMNS) as f64 * height + 52.0);
        panel(&mut out, row, x, y);
    }
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, row: &Row, x: f64, y: f64) {
    let largest = row.values.iter().filter_map(|(_, v)| *v).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let _ = writeln!(
        out,
        "<text x=\"{x}\" y=\"{}\" font-weight=\"600\" fill=\"#1b2733\">{} <tspan fill=\"#6b7885\" font-weight=\"400\">{}</tspan></text>",
        y + 16.0,
        row.what,
        row.unit
    );
    let shown = row.values.iter().filter_map(|(who, value)| Some((who, (*value)?)));
    for (n, (who, value)) in shown.enumerate() {
        let top = y + 26.0 + n as f64 * STEP;
        let middle = top + BAR / 2.0 + 4.5;
        let _ = writeln!(out, "<text x=\"{x}\" y=\"{middle}\" fill=\"#3d4a57\">{who}</text>");
        let length = (value / largest * (WIDTH - LABEL - 90.0)).max(1.0);
        let colour = match *who {
            FLOOR => "#9aa5b1",
            "keelson" => "#1f7a8c",
            _ => "#e1a95f",
        };
        let _ = writeln!(
            out,
            "<rect x=\"{}\" y=\"{top}\" width=\"{length:.1}\" height=\"{BAR}\" rx=\"2\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{middle}\" fill=\"#1b2733\">{}</text>",
            x + LABEL,
            x + LABEL + length + 6.0,
            number(value)
        );
    }
}
