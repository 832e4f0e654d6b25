//! Bars and lines as SVG.

use super::escape;
use crate::settings::{real, wide};

const COLOURS: [&str; 8] =
    ["#2b6cb0", "#d9822b", "#2f855a", "#8a5bb5", "#c0392b", "#6b7785", "#0e8a93", "#a8842c"];
const WIDTH: f64 = 1_000.0;
/// Left of the bars, for their names.
const NAMES: f64 = 300.0;
const ROW: f64 = 26.0;
const PLOT_HEIGHT: f64 = 260.0;
/// Around a plot of lines.
const MARGIN: f64 = 50.0;
const GRID_LINES: usize = 4;

/// A bar of parts, one after the other, and a mark to compare it with.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) values: Vec<f64>,
    pub(super) mark: Option<f64>,
}

/// A line through points in the order of their first numbers.
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

fn colour(number: usize) -> &'static str {
    COLOURS[number % COLOURS.len()]
}

/// Bars below each other. `legend` names their parts.
pub(super) fn bars(bars: &[Bar], legend: &[&str], mark: Option<&str>) -> String {
    let whole = |bar: &Bar| bar.values.iter().sum::<f64>().max(bar.mark.unwrap_or(0.0));
    let most = bars.iter().map(whole).fold(1e-9, f64::max);
    let scale = (WIDTH - NAMES - 90.0) / most;
    let height = real(wide(bars.len())) * ROW + 40.0;
    let mut svg = begin(height);
    for (row, bar) in bars.iter().enumerate() {
        let top = real(wide(row)) * ROW + 4.0;
        svg += &text(NAMES - 8.0, top + 13.0, "end", &bar.name);
        let mut left = NAMES;
        for (part, value) in bar.values.iter().enumerate() {
            let width = (value * scale).max(0.0);
            let fill = colour(part);
            svg += &format!(
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"18\" fill=\"{fill}\"/>"
            );
            left += width;
        }
        let sum: f64 = bar.values.iter().sum();
        svg += &text(
            left.max(bar.mark.map_or(0.0, |at| NAMES + at * scale)) + 6.0,
            top + 13.0,
            "start",
            &short(sum),
        );
        if let Some(at) = bar.mark {
            let x = NAMES + at * scale;
            let (from, to) = (top - 2.0, top + 20.0);
            svg += &format!(
                "<line x1=\"{x:.1}\" y1=\"{from:.1}\" x2=\"{x:.1}\" y2=\"{to:.1}\" stroke=\"#111\" stroke-width=\"2\"/>"
            );
        }
    }
    let mut names: Vec<(&str, &str)> =
        legend.iter().enumerate().map(|(part, name)| (colour(part), *name)).collect();
    names.extend(mark.map(|name| ("#111", name)));
    svg += &keys(&names, height - 14.0);
    svg + "</svg>"
}

/// Lines in one plot, both axes from 0.
pub(super) fn lines(all: &[Line]) -> String {
    let points = || all.iter().flat_map(|line| &line.points);
    let right = points().map(|point| point.0).fold(1e-9, f64::max);
    let top = points().map(|point| point.1).fold(1e-9, f64::max);
    let (width, height) = (WIDTH - 2.0 * MARGIN, PLOT_HEIGHT - MARGIN);
    let x = |value: f64| MARGIN + value / right * width;
    let y = |value: f64| 10.0 + height - value / top * height;
    let mut svg = begin(PLOT_HEIGHT + 24.0);
    for step in 0..=GRID_LINES {
        let part = real(wide(step)) / real(wide(GRID_LINES));
        let (at, value) = (y(top * part), top * part);
        let end = MARGIN + width;
        svg += &format!(
            "<line x1=\"{MARGIN}\" y1=\"{at:.1}\" x2=\"{end}\" y2=\"{at:.1}\" stroke=\"#dde3ea\"/>"
        );
        svg += &text(MARGIN - 6.0, at + 4.0, "end", &short(value));
        svg += &text(x(right * part), height + 26.0, "middle", &short(right * part));
    }
    for (number, line) in all.iter().enumerate() {
        let path: Vec<String> = line
            .points
            .iter()
            .map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value)))
            .collect();
        svg += &format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
            path.join(" "),
            colour(number)
        );
    }
    let names: Vec<(&str, &str)> =
        all.iter().enumerate().map(|(number, line)| (colour(number), line.name.as_str())).collect();
    svg += &keys(&names, PLOT_HEIGHT + 8.0);
    svg + "</svg>"
}

fn begin(height: f64) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" font-size=\"12\" \
         font-family=\"system-ui,sans-serif\" xmlns=\"http://www.w3.org/2000/svg\">"
    )
}

fn text(x: f64, y: f64, anchor: &str, content: &str) -> String {
    let content = escape(content);
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>")
}

/// Names with their colours, in one row.
fn keys(names: &[(&str, &str)], top: f64) -> String {
    let step = (WIDTH - MARGIN) / real(wide(names.len().max(1)));
    let key = |(number, (colour, name)): (usize, &(&str, &str))| {
        let x = MARGIN + real(wide(number)) * step;
        let square = top - 10.0;
        let rect = format!(
            "<rect x=\"{x:.1}\" y=\"{square:.1}\" width=\"11\" height=\"11\" fill=\"{colour}\"/>"
        );
        rect + &text(x + 16.0, top, "start", name)
    };
    names.iter().enumerate().map(key).collect()
}

/// A number in few signs.
fn short(value: f64) -> String {
    if value.abs() < 10.0 {
        format!("{value:.2}")
    } else if value.abs() < 1_000.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}
