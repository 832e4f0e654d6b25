//! Tiers without room: every request is answered rightly or refused clearly, and nothing is stuck.

use std::thread;

use super::up::Up;
use super::view::{Answer, long_prompt};

/// Room for a few requests in the workers, for a few blocks in the store.
const TIGHT: &str = "[server]\narith = \"exact\"\ndevice_blocks = 40\nwindow_objects = 4\n\
                     [gateway]\nlineage = \"exact\"\n\
                     [store]\nblock_bytes_max = 300000\nwindow_bytes_max = 2000000\n";

#[test]
fn full_tiers_give_right_answers_or_clear_refusals() {
    let up = Up::start(None, TIGHT, &[]);
    let prompts: Vec<String> =
        (0..8).map(|number| long_prompt(&format!("full {number}"), 40 + 8 * number)).collect();
    let answers: Vec<Answer> = thread::scope(|scope| {
        // Each twice, so that some find blocks of others half evicted.
        let twice = prompts.iter().chain(&prompts);
        let asked: Vec<_> = twice.map(|prompt| scope.spawn(|| up.ask(prompt))).collect();
        asked.into_iter().map(|asked| asked.join().expect("a client ends")).collect()
    });
    up.at_rest();
    let mut answered = 0;
    for (index, prompt) in prompts.iter().enumerate() {
        up.evict("all");
        let expected = up.answer(prompt);
        for answer in [&answers[index], &answers[index + prompts.len()]] {
            match answer.status {
                200 => assert_eq!(answer.text, expected.text),
                429 | 503 => assert!(!answer.text.contains('\n'), "{answer:?}"),
                _ => panic!("{answer:?}"),
            }
            answered += usize::from(answer.status == 200);
        }
        up.at_rest();
    }
    assert!(prompts.len() <= answered, "{answers:?}");
    let too_long = up.ask(&long_prompt("too long", 700));
    assert_eq!(too_long.status, 400, "{too_long:?}");
    assert!(too_long.text.contains("device_blocks"), "{too_long:?}");
    assert_eq!(up.answer("What is 17 + 25?").text, "17 + 25 = 42.");
    up.at_rest();
    let (code, output) = up.stop();
    assert_eq!(code, Some(0), "{output}");
}
