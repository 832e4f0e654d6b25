//! The input of a tool that takes text: to the model it is the one string among the arguments of a function.

/// Takes the string out of `{"input": "..."}` as it comes. Arguments of another form pass unchanged. Nothing is left to say at the
/// end: arguments that broke off before the string began, or within an escape, have no text behind what went out.
#[derive(Default)]
pub(super) struct Unquoting {
    state: State,
    /// The part of the frame, or of an escape, that is not decided.
    held: String,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Frame,
    Text,
    Escape,
    Ended,
    Unchanged,
}

/// How our parser writes the beginning of an object whose only key is `input`.
const FRAME: &str = "{\"input\": \"";

impl Unquoting {
    pub(super) fn push(&mut self, text: &str, out: &mut String) {
        for character in text.chars() {
            match self.state {
                State::Frame => {
                    self.held.push(character);
                    if self.held == FRAME {
                        self.state = State::Text;
                        self.held.clear();
                    } else if !FRAME.starts_with(&self.held) {
                        self.state = State::Unchanged;
                        out.push_str(&std::mem::take(&mut self.held));
                    }
                }
                State::Text => match character {
                    '"' => self.state = State::Ended,
                    '\\' => {
                        self.held.push('\\');
                        self.state = State::Escape;
                    }
                    other => out.push(other),
                },
                State::Escape => {
                    self.held.push(character);
                    let quoted = format!("\"{}\"", self.held);
                    if let Ok(decoded) = serde_json::from_str::<String>(&quoted) {
                        out.push_str(&decoded);
                        self.held.clear();
                        self.state = State::Text;
                    } else if ESCAPE_BYTES_MAX <= self.held.len() {
                        out.push_str(&std::mem::take(&mut self.held));
                        self.state = State::Text;
                    }
                }
                State::Unchanged => out.push(character),
                State::Ended => {}
            }
        }
    }
}

/// The longest escape: two halves of a character beyond the basic plane.
const ESCAPE_BYTES_MAX: usize = 12;

#[cfg(test)]
mod tests {
    use super::Unquoting;

    #[test]
    fn the_string_comes_out_at_every_split() {
        let text = "*** Begin\n\"a\\b\"\t🤭é\u{1}";
        let arguments = serde_json::json!({"input": text}).to_string().replacen(":", ": ", 1);
        let others = ["{}", "{\"other\": \"x\"}", "[1]"];
        for (arguments, expected) in
            others.map(|text| (text, text)).into_iter().chain([(arguments.as_str(), text)])
        {
            for cut in (0..=arguments.len()).filter(|cut| arguments.is_char_boundary(*cut)) {
                let mut unquoting = Unquoting::default();
                let mut out = String::new();
                unquoting.push(&arguments[..cut], &mut out);
                unquoting.push(&arguments[cut..], &mut out);
                assert_eq!(out, expected, "{cut}");
            }
        }
    }

    #[test]
    fn a_frame_that_broke_off_is_no_text() {
        for cut in 0..=super::FRAME.len() {
            let (mut unquoting, mut out) = (Unquoting::default(), String::new());
            unquoting.push(&super::FRAME[..cut], &mut out);
            assert_eq!(out, "", "{cut}");
        }
    }
}
