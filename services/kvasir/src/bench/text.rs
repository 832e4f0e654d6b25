//! Prompt text of a wanted length, the same for the same key on every machine.

use shared::random::mix;

/// Small sentences of the kind the built-in model was trained on; any model's tokenizer cuts them into common words.
const SUBJECTS: [&str; 8] =
    ["Anna", "Tom", "The teacher", "My uncle", "The baker", "Lena", "The captain", "A young fox"];
const VERBS: [&str; 8] =
    ["finds", "likes", "carries", "draws", "sells", "remembers", "washes", "looks for"];
const OBJECTS: [&str; 8] = [
    "a red ball",
    "the old map",
    "three apples",
    "a small boat",
    "the blue door",
    "a warm coat",
    "the garden",
    "a silver spoon",
];
const PLACES: [&str; 8] = [
    "near the river",
    "in the kitchen",
    "behind the school",
    "at the market",
    "on the hill",
    "under the bridge",
    "in the morning",
    "after the rain",
];

/// Sentences until at least `characters` are reached. Different keys differ from the first sentence on.
pub(crate) fn sentences(key: u64, characters: usize) -> String {
    let mut text = format!("Notes number {key}.");
    let mut state = key;
    while text.len() < characters {
        state = mix(state);
        let pick = |list: &[&'static str; 8], shift: u32| {
            list[usize::try_from((state >> shift) % 8).expect("below 8")]
        };
        let sentence =
            [pick(&SUBJECTS, 8), pick(&VERBS, 16), pick(&OBJECTS, 24), pick(&PLACES, 32)];
        text.push(' ');
        text.push_str(&sentence.join(" "));
        text.push('.');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::sentences;

    #[test]
    fn text_is_reproducible_and_differs_by_key_from_the_start() {
        assert_eq!(sentences(7, 1_000), sentences(7, 1_000));
        let (a, b) = (sentences(7, 1_000), sentences(8, 1_000));
        assert_ne!(a[..20], b[..20]);
    }

    #[test]
    fn length_is_reached_and_not_passed_by_more_than_a_sentence() {
        for characters in [0, 100, 5_000] {
            let text = sentences(1, characters);
            assert!(characters <= text.len() && text.len() < characters + 80, "{}", text.len());
        }
    }
}
