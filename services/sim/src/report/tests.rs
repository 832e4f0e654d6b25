use serde_json::Value;
use shared::Timestamp;

use super::{Report, json, page, simulate, table};
use crate::{Chain, Checking, Fault, Request, Settings, Trace};

fn reports() -> Vec<Report> {
    let request = |number: u64| Request {
        at: Timestamp(number * 500_000_000),
        prompt_tokens: 1_000,
        answer_tokens: 5,
        chain: Chain::Ids { ids: (0..7).collect(), blocks_per_id: 1 },
    };
    let label = "a < b & \"c\"".to_owned();
    let trace = Trace { label, requests: (0..10).map(request).collect() };
    let fault = Fault::parse("slow-disk:store-0@1+2x3").unwrap();
    let run = |host_gib| {
        let settings = Settings { host_gib, ..Settings::default() };
        simulate((&trace, trace.bound()), &settings, &[fault], Checking::Full).unwrap()
    };
    vec![run(0.5), run(1.0)]
}

#[test]
fn the_table_states_every_setting_and_where_it_comes_from() {
    let reports = reports();
    let lines = table(&reports, &["host-gib".to_owned()]);
    assert!(
        lines[0].contains("a < b")
            && lines.iter().any(|line| line == "fault: slow-disk:store-0@1+2x3")
    );
    assert!(lines.iter().any(|line| line.contains("| host-gib 0.5 | host-gib 1 |")), "{lines:?}");
    for (name, value, _) in &reports[0].settings {
        let shown = lines.iter().any(|line| line.contains(&format!(" {name} = {value}: ")));
        assert_eq!(shown, name != "host-gib", "{name}");
    }
    let finished = lines.iter().find(|line| line.starts_with("| finished ")).unwrap();
    assert_eq!(finished, "| finished |  | 10 | 10 |");
    assert!(table(&[], &[]).is_empty());
}

#[test]
fn json_has_the_same_figures() {
    let reports = reports();
    let value: Value = serde_json::from_str(&json(&reports, &["host-gib".to_owned()])).unwrap();
    for (run, report) in value["runs"].as_array().unwrap().iter().zip(&reports) {
        for figure in &report.figures {
            let found = run["figures"][figure.name].as_f64();
            // The reader of JSON may be wrong in the last place.
            let near = |(found, value): (f64, f64)| (found - value).abs() <= value.abs() * 1e-12;
            assert!(found.is_none() == figure.value.is_none(), "{}", figure.name);
            assert!(found.zip(figure.value).is_none_or(near), "{}", figure.name);
            assert_eq!(value["figures"][figure.name]["unit"], figure.unit);
        }
        assert_eq!(run["trace"], "a < b & \"c\"");
        assert_eq!(run["parts"].as_array().map(Vec::len), Some(report.parts.len()));
    }
}

#[test]
fn the_page_is_complete_in_itself() {
    let page = page(&reports(), &["host-gib".to_owned()]);
    assert!(page.contains("a &lt; b &amp; &quot;c&quot;") && !page.contains("a < b"));
    let charts = page.matches("<svg").count();
    assert_eq!((charts, page.matches("</svg>").count()), (6, 6));
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("NaN"));
    // The one address is the name of SVG itself.
    let addresses = page.matches("http").count();
    assert_eq!(addresses, charts, "nothing is fetched");
}
