//! Characters out of bytes that arrive token by token.

/// Holds back the bytes of an incomplete character; shows U+FFFD only for bytes that can never become one.
///
/// What comes out, joined, equals a lossy decoding of all bytes at once.
#[derive(Default)]
pub(crate) struct Utf8Assembler {
    /// The beginning of one character: at most 3 bytes between calls.
    pending: Vec<u8>,
}

impl Utf8Assembler {
    /// Takes the bytes of one token and appends the characters that are complete now.
    pub(crate) fn push(&mut self, bytes: &[u8], text: &mut String) {
        self.pending.extend_from_slice(bytes);
        loop {
            let error = match std::str::from_utf8(&self.pending) {
                Ok(whole) => {
                    text.push_str(whole);
                    self.pending.clear();
                    return;
                }
                Err(error) => error,
            };
            let valid = error.valid_up_to();
            text.push_str(std::str::from_utf8(&self.pending[..valid]).expect("just validated"));
            let Some(invalid) = error.error_len() else {
                self.pending.drain(..valid);
                return;
            };
            text.push(char::REPLACEMENT_CHARACTER);
            self.pending.drain(..valid + invalid);
        }
    }

    /// Bytes held back.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Gives up on an incomplete character: something that is no text follows it.
    pub(crate) fn interrupt(&mut self, text: &mut String) {
        if !self.pending.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Utf8Assembler;

    #[test]
    fn every_split_gives_the_lossy_decoding_of_the_whole() {
        let samples: [&[u8]; 7] = [
            "a🤭é杭".as_bytes(),
            b"\xff\xfea",
            b"\xe2\x82a",
            b"\xf0\x9f\x92\xf0\x9f\x92\xa9",
            b"ok\x80\x80",
            b"",
            b"\xed\xa0\x80x",
        ];
        for bytes in samples {
            for first in 0..=bytes.len() {
                for second in first..=bytes.len() {
                    let mut assembler = Utf8Assembler::default();
                    let mut text = String::new();
                    for part in [&bytes[..first], &bytes[first..second], &bytes[second..]] {
                        assembler.push(part, &mut text);
                    }
                    assembler.interrupt(&mut text);
                    assert_eq!(text, String::from_utf8_lossy(bytes), "{first} {second}");
                }
            }
        }
    }
}
