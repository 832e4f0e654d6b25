//! The report as one page: text, tables and charts drawn as SVG, nothing fetched from anywhere.

mod chart;

use super::text::{heading, shown, table};
use super::{Figure, Part, Report};
use chart::{Bar, Line, bars, lines};

/// Runs whose course over time is drawn; more lines cannot be told apart.
const COURSES_MAX: usize = 8;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1c2430}\
    h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}table{border-collapse:collapse;font-size:13px}\
    td,th{padding:.15rem .6rem;border-bottom:1px solid #dde3ea;text-align:right}td:first-child,th:first-child{text-align:left}\
    .wide{overflow-x:auto}pre{white-space:pre-wrap;font-size:12px;background:#f4f6f9;padding:1rem}svg{max-width:100%}\
    .label{background:#fff4d6;padding:.4rem .8rem;display:inline-block}";

/// What is drawn over time.
type Course = fn(&Part) -> Option<f64>;

/// The page. `axes` are the settings in which the runs differ.
#[must_use]
pub fn page(reports: &[Report], axes: &[String]) -> String {
    let Some(first) = reports.first() else { return String::new() };
    let names: Vec<String> = reports.iter().map(|report| heading(report, axes)).collect();
    let mut body = format!(
        "<h1>Simulated: {}</h1><p class=\"label\">Virtual time; the router, schedulers, planner, pools and retention are the \
         shipped ones, every duration is a setting listed below.</p>",
        escape(&first.trace)
    );
    for fault in &first.faults {
        body += &format!("<p>Fault: {}</p>", escape(fault));
    }
    body += &section("Tokens of prompts found in a cache, %", &hit_chart(reports, &names));
    body += &section("Time to the first token, ms", &ttft_chart(reports, &names));
    body += &section("Busy time of workers, %", &busy_chart(reports, &names));
    let drawn = &reports[..reports.len().min(COURSES_MAX)];
    let courses: [(&str, Course); 3] = [
        ("Tokens found in a cache, %, by time of arrival (s)", |part| part.hit),
        ("Mean time to the first token, ms, by time of arrival (s)", |part| part.ttft_ms),
        ("Requests that arrived per second, by time (s)", |part| Some(part.arrivals)),
    ];
    for (title, value) in courses {
        body += &section(title, &course(drawn, &names, value));
    }
    body += &section("Figures", &figures(reports, &names));
    let text = table(&reports[..1], axes);
    let settings = text.iter().skip_while(|line| !line.starts_with("settings"));
    let settings: Vec<&str> = settings.map(String::as_str).collect();
    body += &section("Settings", &format!("<pre>{}</pre>", escape(&settings.join("\n"))));
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>kvasir sim</title><style>{STYLE}</style>\
         <body>{body}</body></html>\n"
    )
}

fn section(title: &str, content: &str) -> String {
    format!("<h2>{}</h2><div class=\"wide\">{content}</div>", escape(title))
}

fn hit_chart(reports: &[Report], names: &[String]) -> String {
    let tiers = [
        ("hit_device", "decode worker"),
        ("hit_peer", "prefill worker"),
        ("hit_host", "host memory"),
        ("hit_disk", "drive"),
    ];
    let legend: Vec<&str> = tiers.iter().map(|(_, legend)| *legend).collect();
    let bar = |(report, name): (&Report, &String)| Bar {
        name: name.clone(),
        values: tiers.iter().map(|(tier, _)| report.value(tier).unwrap_or(0.0)).collect(),
        mark: report.value("hit_infinite_usable"),
    };
    let all: Vec<Bar> = reports.iter().zip(names).map(bar).collect();
    bars(&all, &legend, Some("cache without bound"))
}

fn ttft_chart(reports: &[Report], names: &[String]) -> String {
    // Stacked as differences, so that the end of each part is the quantile.
    let legend = ["p50", "to p90", "to p99"];
    let bar = |(report, name): (&Report, &String)| {
        let [p50, p90, p99] =
            ["ttft_p50", "ttft_p90", "ttft_p99"].map(|name| report.value(name).unwrap_or(0.0));
        Bar { name: name.clone(), values: vec![p50, p90 - p50, p99 - p90], mark: None }
    };
    let all: Vec<Bar> = reports.iter().zip(names).map(bar).collect();
    bars(&all, &legend, None)
}

fn busy_chart(reports: &[Report], names: &[String]) -> String {
    let roles = [("prefill_busy", "prefill"), ("decode_busy", "decode")];
    let rows = reports.iter().zip(names).flat_map(|(report, name)| {
        roles.iter().filter_map(move |(figure, role)| {
            let value = report.value(figure)?;
            Some(Bar { name: format!("{role}, {name}"), values: vec![value], mark: Some(100.0) })
        })
    });
    let all: Vec<Bar> = rows.collect();
    bars(&all, &["busy"], Some("all of the time"))
}

fn course(reports: &[Report], names: &[String], value: Course) -> String {
    let line = |(report, name): (&Report, &String)| Line {
        name: name.clone(),
        points: report
            .parts
            .iter()
            .filter_map(|part| value(part).map(|value| (part.until_s, value)))
            .collect(),
    };
    let all: Vec<Line> = reports.iter().zip(names).map(line).collect();
    lines(&all)
}

fn figures(reports: &[Report], names: &[String]) -> String {
    let head: String = names.iter().map(|name| format!("<th>{}</th>", escape(name))).collect();
    let row = |(row, figure): (usize, &Figure)| {
        let cell = |report: &Report| format!("<td>{}</td>", escape(&shown(&report.figures[row])));
        let cells: String = reports.iter().map(cell).collect();
        let (name, about, unit) = (figure.name, escape(figure.about), figure.unit);
        format!("<tr title=\"{about}\"><td>{name} {unit}</td>{cells}</tr>")
    };
    let rows: String = reports
        .first()
        .map(|first| first.figures.iter().enumerate().map(row).collect())
        .unwrap_or_default();
    format!("<table><tr><th></th>{head}</tr>{rows}</table>")
}

/// Text as it may stand in a page.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            other => escaped.push(other),
        }
    }
    escaped
}
