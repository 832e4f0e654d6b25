//! The next turn of a conversation hits what the last one left: through its answer, or, where the template drops the
//! reasoning, through its prompt.

use std::sync::Arc;

use deepseek_recipe::openai::ChatCompletionRequest;
use deepseek_recipe::request::{ConversionOptions, ModelVersion, ProtocolRequest};
use deepseek_recipe_encoding::dsv41::DeepseekV41Encoding;
use deepseek_recipe_encoding::{PromptEncoding, PromptTokenizer};
use engine::Arithmetic;
use serde_json::{Value, json};
use shared::{BLOCK_TOKENS, DecodeRequest, FinishReason, Lineage, TokenId, WindowSource};
use tokenizers::Tokenizer;

use super::cluster::{Answer, Cluster, Engines, request};
use super::lane::Alone;
use super::models::{Model, tokenizer};

/// Ends an answer.
const END: TokenId = TokenId(1);
const MODEL: &str = "seedling";
const SYSTEM: &str = "You are a friendly shop keeper. The shop sells apples, pears, bread, milk, eggs, cheese, \
    honey, tea, rice, soap, candles and paper. An apple costs 2 coins, a pear costs 3 coins, a bread costs 5 coins, \
    milk costs 4 coins, ten eggs cost 6 coins, cheese costs 9 coins, honey costs 8 coins, tea costs 7 coins. The shop \
    opens at eight in the morning and closes at six in the evening. It is closed on Sunday. The shop stands between the \
    school and the river, beside the old bridge. Be kind, answer in short sentences, and never promise what the shop \
    does not have. If somebody asks for a story, tell a story.";

/// Long enough that the next start lies behind the answer before it.
const LONG_QUESTION: &str = "Thank you, I liked that very much! Now listen to this story. Tom is a baker. Tom lives in \
    Paris and has a red bicycle. Every morning Tom bakes forty loaves of bread and carries them to the market. Anna is \
    a teacher. Anna lives in Rome and has a blue boat. In summer Anna rows across the lake to visit her brother Max, \
    who keeps bees and sells honey. Max has a green house with a small garden. One day Tom, Anna and Max met at the \
    river and ate bread with honey. It was a good day. What does Tom do?";

/// A conversation, rendered as the front door does it.
struct Chat {
    messages: Vec<Value>,
    thinking: &'static str,
    encoding: DeepseekV41Encoding,
    tokenizer: Tokenizer,
}

impl Chat {
    fn new(thinking: &'static str, question: &str) -> Self {
        let tokenizer = tokenizer();
        let encoder = Arc::new(PromptTokenizer::new(&tokenizer));
        let encoding = DeepseekV41Encoding::new().with_tokenizer(encoder);
        let messages = vec![
            json!({"role": "system", "content": SYSTEM}),
            json!({"role": "user", "content": question}),
        ];
        Self { messages, thinking, encoding, tokenizer }
    }

    fn prompt(&self) -> Vec<TokenId> {
        let chat = json!({
            "model": MODEL, "messages": self.messages, "thinking": {"type": self.thinking},
        });
        let chat: ChatCompletionRequest = serde_json::from_value(chat).unwrap();
        let options =
            ConversionOptions::new().with_model_alias(MODEL, ModelVersion::DeepseekV41Flash);
        let conversation = chat.convert(options).unwrap().conversation;
        self.encoding.encode(&conversation).unwrap().into_iter().map(TokenId).collect()
    }

    /// Appends the answer as a client would send it back, and the next question.
    fn go_on(&mut self, answer: &[TokenId], question: &str) {
        let end_of_thought = TokenId(self.tokenizer.token_to_id("</think>").unwrap());
        let read = |ids: &[TokenId]| {
            let ids: Vec<u32> = ids.iter().map(|id| id.0).collect();
            self.tokenizer.decode(&ids, true).unwrap()
        };
        let mut parts = answer.split(|id| *id == end_of_thought);
        let first = read(parts.next().unwrap());
        let message = match parts.next() {
            Some(content) => {
                json!({"role": "assistant", "reasoning_content": first, "content": read(content)})
            }
            None => json!({"role": "assistant", "content": first}),
        };
        self.messages.push(message);
        self.messages.push(json!({"role": "user", "content": question}));
    }
}

/// One answer through the roles, checked against one sequence alone.
fn ask(cluster: &Cluster, prompt: &[TokenId], tokens: u32) -> Answer {
    let asked = request(1, Lineage::Exact, prompt, tokens);
    let asked = DecodeRequest { stop_ids: vec![END], ..asked };
    let answer = cluster.answer(&asked);
    cluster.rest();
    let count = u32::try_from(answer.tokens.len()).unwrap();
    let alone = Alone::answer(&cluster.engines.decode, prompt, &asked.sampling, count);
    cluster.check(&asked, &answer, &alone);
    answer
}

/// Leading ids that two sequences share.
fn shared_prefix(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn whole_blocks(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap() / BLOCK_TOKENS * BLOCK_TOKENS
}

#[test]
fn the_next_turn_without_thinking_hits_through_the_answer() {
    let engines = Engines::load(Model::Seedling, Arithmetic::Exact);
    let cluster = Cluster::start(&engines);
    let mut chat = Chat::new("disabled", "Tell me a story about a fox.");
    let mut prompt = chat.prompt();
    let mut answer = ask(&cluster, &prompt, 150);
    let mut through_an_answer = 0;
    for question in [LONG_QUESTION, "Tell me another story."] {
        assert_eq!(answer.end, FinishReason::Stop);
        let known: Vec<_> = prompt.iter().chain(&answer.tokens).copied().collect();
        chat.go_on(&answer.tokens, question);
        let next = chat.prompt();
        let common = shared_prefix(&known, &next);
        assert_eq!(common, known.len(), "the answer is rendered as it was generated");
        let hit = ask(&cluster, &next, 150);
        // The last token of an answer is never processed.
        let processed = whole_blocks(known.len() - 1);
        let boundary = engines.decode.geometry().boundary(u32::try_from(next.len()).unwrap());
        assert_eq!(hit.start.cached_tokens, processed.min(boundary));
        // The windows were kept at the boundary from which a turn of no length would start, up to K + 128 earlier.
        let near = hit.start.replayed_tokens <= 2 * BLOCK_TOKENS;
        let kept = [WindowSource::Object, WindowSource::Recomputed];
        assert!(near && kept.contains(&hit.start.window_source), "{:?}", hit.start);
        let reached = usize::try_from(hit.start.cached_tokens).unwrap();
        through_an_answer += usize::from(prompt.len() < reached);
        (prompt, answer) = (next, hit);
    }
    assert_ne!(through_an_answer, 0, "the first answer crosses the end of a block");
}

#[test]
fn the_next_turn_with_thinking_hits_through_its_prompt() {
    let engines = Engines::load(Model::Seedling, Arithmetic::Exact);
    let cluster = Cluster::start(&engines);
    let mut chat = Chat::new("enabled", "What is 23 + 45?");
    let first = chat.prompt();
    let answer = ask(&cluster, &first, 150);
    chat.go_on(&answer.tokens, LONG_QUESTION);
    let second = chat.prompt();
    assert_eq!(shared_prefix(&first, &second), first.len() - 1, "all but the opened thought");
    let hit = ask(&cluster, &second, 150);
    let boundary = engines.decode.geometry().boundary(u32::try_from(second.len()).unwrap());
    let expected = whole_blocks(first.len() - 1).min(boundary);
    assert_ne!(expected, 0);
    assert_eq!(hit.start.cached_tokens, expected);
}
