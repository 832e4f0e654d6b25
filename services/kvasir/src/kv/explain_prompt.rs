//! `kvasir kv explain --prompt`: where the blocks of a prompt are now, and why not elsewhere.
//!
//! A router says by which names the prompt would be looked up; each process that is named says which of them it has. Nothing
//! is looked up on the way a request would take, so that nothing changes by it.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::{fs, iter};

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use shared::Clock;
use tokio::runtime::Builder;

use super::ExplainArgs;
use crate::admin::NAMES_MAX;
use crate::client::Client;
use crate::console::Console;

/// What a router says of a prompt.
#[derive(Debug, Deserialize)]
struct Prompt {
    prompt_tokens: u64,
    block_tokens: usize,
    names: Vec<String>,
}

/// Blocks that follow each other, as `POST /debug/blocks` tells them.
#[derive(Debug, Deserialize)]
struct Run {
    from: usize,
    to: usize,
    place: String,
    reason: Option<String>,
}

/// Asks, prints.
///
/// # Errors
/// When the prompt cannot be read or is refused, or a listener cannot be reached.
pub(super) fn run(
    args: &ExplainArgs,
    (prompt, router): (&Path, &str),
    clock: Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    let body = read(prompt)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(explain(args, (&body, router), clock, console))
}

/// The file as a chat request.
fn read(path: &Path) -> anyhow::Result<Value> {
    let text = if path == Path::new("-") {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        fs::read_to_string(path)
    };
    let text = text.with_context(|| format!("reading the prompt {}", path.display()))?;
    Ok(chat(text))
}

fn chat(text: String) -> Value {
    match serde_json::from_str(&text) {
        Ok(request @ Value::Object(_)) => request,
        _ => json!({"messages": [{"role": "user", "content": text}]}),
    }
}

async fn explain(
    args: &ExplainArgs,
    (body, router): (&Value, &str),
    clock: Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    let client = Client::http(router, None, Arc::clone(&clock))?;
    let told = client.post("/debug/prompt", body).await;
    let told = told.with_context(|| format!("asking the router {router} for the names"))?;
    let prompt: Prompt = serde_json::from_value(told)
        .with_context(|| format!("{router} is no admin listener of a router"))?;
    let Prompt { prompt_tokens, block_tokens, names } = prompt;
    if NAMES_MAX < names.len() {
        bail!("{} blocks are more than can be asked for at once ({NAMES_MAX})", names.len());
    }
    if !args.json {
        console.line(&format!(
            "the prompt has {prompt_tokens} tokens, {} whole blocks",
            names.len()
        ))?;
    }
    let mut held = vec![false; names.len()];
    for url in &args.admin {
        let client = Client::http(url, None, Arc::clone(&clock))?;
        let answer = client.post("/debug/blocks", &json!({"names": names})).await;
        let answer = answer.with_context(|| format!("asking {url}"))?;
        let runs: Vec<Run> = serde_json::from_value(answer.clone())
            .with_context(|| format!("{url} is no admin listener of this version"))?;
        for run in runs.iter().filter(|run| run.place != "missing") {
            if let Some(held) = held.get_mut(run.from..run.to) {
                held.fill(true);
            }
        }
        if args.json {
            console.line(&json!({"admin": url, "blocks": answer}).to_string())?;
            continue;
        }
        for line in
            iter::once(format!("{url}:")).chain(runs.iter().map(|run| described(run, block_tokens)))
        {
            console.line(&line)?;
        }
    }
    let prefix = held.iter().take_while(|held| **held).count();
    if args.json {
        let whole = json!({
            "prompt_tokens": prompt_tokens, "blocks": names.len(), "held_prefix_blocks": prefix,
        });
        return Ok(console.line(&whole.to_string())?);
    }
    let tokens = prefix * block_tokens;
    Ok(console.line(&format!("together they have the first {prefix} blocks, {tokens} tokens"))?)
}

fn described(run: &Run, block_tokens: usize) -> String {
    let Run { from, to, place, reason } = run;
    let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    let tokens = (from * block_tokens, to * block_tokens);
    format!(
        "  blocks {from:>5} to {to:<5}  tokens {:>7} to {:<7}  {place}{reason}",
        tokens.0, tokens.1
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Run, chat, described};

    #[test]
    fn a_file_is_a_request_or_the_text_of_one_message() {
        let request = json!({"messages": [{"role": "system", "content": "x"}]});
        assert_eq!(chat(request.to_string()), request);
        for text in ["hello", "[1]", "{not json"] {
            let expected = json!({"messages": [{"role": "user", "content": text}]});
            assert_eq!(chat(text.to_owned()), expected);
        }
    }

    #[test]
    fn a_run_is_told_with_its_tokens_and_reason() {
        let run = |reason: Option<&str>| Run {
            from: 2,
            to: 3,
            place: "missing".to_owned(),
            reason: reason.map(str::to_owned),
        };
        let line = described(&run(Some("expired")), 128);
        assert!(line.ends_with("tokens     256 to 384      missing: expired"), "{line}");
        assert!(described(&run(None), 128).ends_with("missing"));
    }
}
