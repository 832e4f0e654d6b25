//! `kvasir generate`: one answer without a server. The same roles and the same front door as `kvasir serve`, but no socket.

use std::io;
use std::sync::Arc;

use engine::Checkpoint;
use shared::Clock;
use tokio::task::block_in_place;

use crate::cli::GenerateArgs;
use crate::client::{ChatRequest, Client, Message, Piece};
use crate::config::Config;
use crate::console::Console;
use crate::serve::Backend;
use crate::telemetry::Telemetry;

/// Answers one prompt, piece by piece as it is computed.
///
/// # Errors
/// When the model cannot be loaded or the prompt is refused.
pub(crate) async fn run(
    args: &GenerateArgs,
    clock: Arc<dyn Clock>,
    console: &mut Console,
) -> anyhow::Result<()> {
    let mut config = Config::default();
    if let Some(arith) = args.arith {
        config.server.arith = arith;
    }
    let (backend, gateway, model) = block_in_place(|| {
        let checkpoint = Checkpoint::open(&args.model)?;
        let off = Telemetry::off();
        let backend = Backend::start(&config, &checkpoint, None, &off, &clock, &mut |line| {
            console.progress(line);
        })?;
        let (gateway, name) = backend.gateway(&config, &checkpoint, &off, &clock)?;
        Ok::<_, anyhow::Error>((backend, gateway, name))
    })?;
    let client = Client::local(gateway.public_router(), clock);
    let request = ChatRequest {
        model,
        messages: vec![Message { role: "user", text: args.prompt.clone() }],
        output_tokens_max: args.max_tokens,
        temperature: args.temperature,
        seed: args.seed,
        thinking: args.thinking,
    };
    let mut written: io::Result<()> = Ok(());
    let mut reasoned = false;
    let answer = client
        .chat(&request, |piece| {
            let said = match piece {
                Piece::Reasoning(text) => {
                    reasoned = true;
                    console.piece(text)
                }
                // A blank line between the two, once.
                Piece::Text(text) if std::mem::take(&mut reasoned) => {
                    console.piece(&format!("\n\n{text}"))
                }
                Piece::Text(text) => console.piece(text),
            };
            written = std::mem::replace(&mut written, Ok(())).and(said);
        })
        .await?;
    written?;
    console.line("")?;
    console.progress(&format!(
        "{} prompt tokens, {} of the answer, first after {:.0} ms, then {:.1} ms each, ended by {}",
        answer.prompt_tokens,
        answer.completion_tokens,
        answer.ttft_ms,
        answer.itl_ms,
        answer.finish_reason
    ));
    block_in_place(|| {
        drop((client, gateway));
        drop(backend);
    });
    Ok(())
}
