//! Reasoning and content: what is shown, what is held back, and what begins a block of tool calls.
//!
//! Held back is what may turn out not to be text: the beginning of a stop string, the newlines before a closing mark, and,
//! where tool calls are read, newlines and `<`, which the sentinel of a block may follow.

use super::Progress;

/// The newlines and the `<` that the text ends with, in front of which a sentinel would make a block of calls.
#[derive(Clone, Copy, Default)]
struct Lead {
    newlines: usize,
    bracket: bool,
}

impl Lead {
    fn feed(&mut self, byte: u8) {
        *self = match (byte, self.bracket) {
            (b'\n', false) => Self { newlines: self.newlines + 1, bracket: false },
            (b'\n', true) => Self { newlines: 1, bracket: false },
            (b'<', false) => Self { newlines: self.newlines, bracket: true },
            (b'<', true) => Self { newlines: 0, bracket: true },
            _ => Self::default(),
        };
    }

    fn bytes(self) -> usize {
        self.newlines + usize::from(self.bracket)
    }
}

/// How a text is read.
#[derive(Clone, Copy)]
pub(super) struct TextRules {
    /// Leading newlines are dropped.
    pub(super) strip: bool,
    /// What may begin a block of calls is held back.
    pub(super) calls: bool,
}

/// Reasoning: leading newlines are dropped, others held back until something follows that is not the closing mark.
pub(super) struct ReasoningText {
    strip: bool,
    calls: bool,
    lead: Lead,
    /// Bytes taken.
    taken: usize,
}

impl ReasoningText {
    pub(super) fn new(rules: TextRules) -> Self {
        let TextRules { strip, calls } = rules;
        Self { strip, calls, lead: Lead::default(), taken: 0 }
    }

    pub(super) fn push(&mut self, text: &str, out: &mut String) {
        self.taken += text.len();
        for character in text.chars() {
            if character == '\n' && self.strip {
                continue;
            }
            self.strip = false;
            if character == '\n' && !self.lead.bracket {
                self.lead.newlines += 1;
                continue;
            }
            if character == '<' && self.calls && !self.lead.bracket {
                self.lead.bracket = true;
                continue;
            }
            self.release(out);
            match character {
                '\n' => self.lead.newlines = 1,
                '<' if self.calls => self.lead.bracket = true,
                other => out.push(other),
            }
        }
    }

    /// Shows everything held back.
    pub(super) fn release(&mut self, out: &mut String) {
        out.extend(std::iter::repeat_n('\n', self.lead.newlines));
        if self.lead.bracket {
            out.push('<');
        }
        self.lead = Lead::default();
    }

    /// Something that is no text follows: a bracket held back is text, newlines stay held.
    pub(super) fn interrupt(&mut self, out: &mut String) {
        if self.lead.bracket {
            self.release(out);
        }
    }

    /// Whether a sentinel would begin a block of calls here.
    pub(super) fn is_led(&self) -> bool {
        self.lead.bracket
    }

    /// Bytes held back.
    pub(super) fn held(&self) -> usize {
        self.lead.bytes()
    }

    /// Bytes shown or dropped.
    pub(super) fn passed(&self) -> usize {
        self.taken - self.held()
    }
}

/// Content: leading newlines are dropped, and what may become a stop string or a block of calls is held back.
pub(super) struct ContentText {
    pub(super) strip: bool,
    calls: bool,
    /// Text not shown yet: the longest end of the text so far that may turn out to be something else.
    held: Vec<u8>,
    lead: Lead,
    stops: Vec<Needle>,
    /// Which stop string was completed.
    stopped: Option<usize>,
    /// Bytes shown or dropped.
    passed: usize,
}

impl ContentText {
    pub(super) fn new(rules: TextRules, stops: &[String]) -> Self {
        let TextRules { strip, calls } = rules;
        let stops = stops.iter().map(|stop| Needle::new(stop.as_bytes())).collect();
        Self {
            strip,
            calls,
            held: Vec::new(),
            lead: Lead::default(),
            stops,
            stopped: None,
            passed: 0,
        }
    }

    /// Which stop string ended the text.
    pub(super) fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    pub(super) fn push(&mut self, text: &str, out: &mut String) -> Progress {
        for byte in text.bytes() {
            self.held.push(byte);
            let complete = |(index, stop): (usize, &mut Needle)| Some((index, stop.feed(byte)?));
            if let Some((index, bytes)) = self.stops.iter_mut().enumerate().find_map(complete) {
                self.stopped = Some(index);
                self.show_all_but(bytes, out);
                return Progress::StopString;
            }
            if self.strip && byte == b'\n' {
                self.passed += self.held.len();
                self.held.clear();
                self.restart();
                continue;
            }
            self.strip = false;
            if self.calls {
                self.lead.feed(byte);
            }
        }
        let begun = self.stops.iter().map(Needle::matched).max().unwrap_or(0);
        self.show_all_but(begun.max(self.lead.bytes()), out);
        Progress::Continues
    }

    /// Shows everything held back.
    pub(super) fn release(&mut self, out: &mut String) {
        self.show_all_but(0, out);
        self.restart();
    }

    /// Whether a sentinel would begin a block of calls here.
    pub(super) fn is_led(&self) -> bool {
        self.lead.bracket
    }

    /// A block of calls begins: what led to it is no text.
    pub(super) fn begin_calls(&mut self, out: &mut String) {
        self.show_all_but(self.lead.bytes(), out);
        self.held.clear();
        self.restart();
    }

    fn restart(&mut self) {
        self.lead = Lead::default();
        for stop in &mut self.stops {
            stop.restart();
        }
    }

    /// Everything that is held back begins with the first byte of a character, so the cut never divides one.
    fn show_all_but(&mut self, kept: usize, out: &mut String) {
        let shown = self.held.len() - kept;
        out.push_str(std::str::from_utf8(&self.held[..shown]).expect("cut between characters"));
        self.held.drain(..shown);
        self.passed += shown;
    }

    /// Bytes held back.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Bytes shown or dropped.
    pub(super) fn passed(&self) -> usize {
        self.passed
    }

    /// Something was shown past this.
    pub(super) fn pass(&mut self, bytes: usize) {
        self.passed += bytes;
    }
}

/// A string looked for in a text that comes in parts, and how much of it the text ends with (Knuth, Morris and Pratt, 1977).
pub(super) struct Needle {
    bytes: Box<[u8]>,
    /// For each length, the longest shorter beginning that is also its end.
    borders: Box<[u16]>,
    matched: usize,
}

impl Needle {
    pub(super) fn new(bytes: &[u8]) -> Self {
        assert!(!bytes.is_empty(), "an empty stop string is refused with the request");
        let mut borders = vec![0; bytes.len()];
        let mut border = 0;
        for index in 1..bytes.len() {
            while border > 0 && bytes[index] != bytes[border] {
                border = usize::from(borders[border - 1]);
            }
            border += usize::from(bytes[index] == bytes[border]);
            borders[index] =
                u16::try_from(border).expect("a longer one is refused with the request");
        }
        Self { bytes: bytes.into(), borders: borders.into(), matched: 0 }
    }

    /// Bytes of the string that the text ends with.
    pub(super) fn matched(&self) -> usize {
        self.matched
    }

    pub(super) fn restart(&mut self) {
        self.matched = 0;
    }

    /// The length of the string, once it is complete. To be restarted then.
    pub(super) fn feed(&mut self, byte: u8) -> Option<usize> {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = usize::from(self.borders[self.matched - 1]);
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        (self.matched == self.bytes.len()).then_some(self.matched)
    }
}
