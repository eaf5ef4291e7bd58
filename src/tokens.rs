//! Token counting: text, whole entries, media.
//!
//! OpenAI's vocabularies are public and counted exactly. The other vendors' are
//! not; for them the count is an estimate that errs upward. What a provider
//! charges beyond the text (roles, call syntax, pictures) follows from the wire
//! format.

pub mod catalogue;
pub mod provider_limits;

mod estimate;
mod exact;
mod json_text;
mod media;

#[cfg(test)]
mod accuracy;

use crate::format::reading::{Part, Reading};
use crate::model::{Tokenizer, WireFormat};
use estimate::Weights;
use exact::Vocabulary;

/// Bytes of a block that the service cannot read, per token.
///
/// Signatures and encrypted reasoning stand for text that the model reads
/// again. Against the providers' own figures for hidden output they have 4.0 to
/// 6.4 base64 characters per token at Anthropic and 4.8 to 5.9 at Google.
const OPAQUE_BYTES_PER_TOKEN: usize = 4;

/// JSON in which no more is escaped than must be: as an API reads it, however its
/// writer escaped it.
pub fn with_few_escapes(json: &[u8]) -> std::borrow::Cow<'_, str> {
    json_text::with_few_escapes(json)
}

/// Width and height in pixels of a picture, if its header tells. Its data are Base64, as
/// they stand in a JSON string.
pub fn image_size(base64: &[u8]) -> Option<[u64; 2]> {
    media::image_size(base64)
}

/// Counts tokens as one wire format and tokenizer have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCounter {
    format: WireFormat,
    tokenizer: Tokenizer,
}

impl TokenCounter {
    /// A counter for entries of that format, with text counted by that
    /// tokenizer.
    pub fn new(format: WireFormat, tokenizer: Tokenizer) -> Self {
        Self { format, tokenizer }
    }

    /// Whether the text of an entry is counted exactly, rather than estimated
    /// with a margin. Overheads and media are approximate either way.
    pub fn is_exact(self) -> bool {
        self.tokenizer != Tokenizer::Estimate
    }

    /// Loads the tokenizer's vocabulary, which takes some hundred milliseconds
    /// and 70 MB the first time in a process and blocks meanwhile: to be called
    /// before the first count and off the async threads.
    pub fn warm_up(self) {
        self.count_text("warm up");
    }

    /// Tokens of a text. Empty text has none, other text at least one.
    ///
    /// Linear in the length. An exact count of ordinary text runs at 10 MB/s or
    /// more, of a sign repeated without end at 1.5 to 8; an estimate at 400 or
    /// more (`benches/tokens.rs`).
    pub fn count_text(self, text: &str) -> u64 {
        match self.tokenizer {
            Tokenizer::O200k => exact::tokens(text, Vocabulary::O200k),
            Tokenizer::Cl100k => exact::tokens(text, Vocabulary::Cl100k),
            Tokenizer::Estimate => estimate::tokens(text.as_bytes(), self.weights()),
        }
    }

    /// Tokens of an entry: its parts, the names of its calls and results, and
    /// what the provider adds around them.
    pub fn count_entry(self, reading: &Reading<'_>) -> u64 {
        let parts = reading.parts.iter().map(|part| self.part(part));
        let calls = reading.calls.iter().map(|call| self.count_text(&call.name));
        let results = reading.results.iter().map(|result| self.count_text(&result.name));
        parts.chain(calls).chain(results).fold(self.overhead(reading), u64::saturating_add)
    }

    fn part(self, part: &Part<'_>) -> u64 {
        match *part {
            Part::Text(token) => self.count_text(&json_text::decode(token)),
            Part::Json(token) => self.count_text(&json_text::lossy(token)),
            Part::Media { kind, base64 } => media::tokens(self.format, kind, base64),
            Part::Opaque(bytes) => bytes.len().div_ceil(OPAQUE_BYTES_PER_TOKEN) as u64,
        }
    }

    fn overhead(self, reading: &Reading<'_>) -> u64 {
        let overhead = Overhead::of(self.format);
        overhead.message
            + overhead.call.saturating_mul(reading.calls.len() as u64)
            + overhead.result.saturating_mul(reading.results.len() as u64)
    }

    /// Gemini's weights for Gemini; elsewhere Claude's, which count the most of
    /// all vendors.
    fn weights(self) -> &'static Weights {
        match self.format {
            WireFormat::GeminiContents => &estimate::GEMINI,
            WireFormat::AnthropicMessages
            | WireFormat::BedrockConverse
            | WireFormat::OpenaiChat
            | WireFormat::OpenaiResponses
            | WireFormat::Opaque => &estimate::CLAUDE,
        }
    }
}

/// Tokens that a provider adds to what an entry says.
struct Overhead {
    message: u64,
    call: u64,
    result: u64,
}

impl Overhead {
    fn of(format: WireFormat) -> Self {
        match format {
            // From recorded requests of GPT-5.4 and 5.5, where the rest is
            // exact: a message costs 4 to 6 more than its text, a message with
            // a call 18 to 20, each result 9 to 11. A lone call costs 11 to 13
            // (here 19), parallel ones 17 to 12 each.
            WireFormat::OpenaiChat | WireFormat::OpenaiResponses => Self { message: 6, call: 13, result: 5 },
            // From recorded requests of Claude Opus 4.5 to 5: a call costs 51
            // to 57 more than its name and input, a user message with a result
            // 5 (Opus 4.7 on) to 29 (before) more than the result. A message
            // of one word is 8 tokens.
            WireFormat::AnthropicMessages | WireFormat::BedrockConverse => {
                Self { message: 7, call: 56, result: 22 }
            }
            // From recorded answers of Gemini 2.5 and 3: a call costs 6 more
            // than its name and arguments; the rest by likeness.
            WireFormat::GeminiContents => Self { message: 4, call: 6, result: 6 },
            WireFormat::Opaque => Self { message: 4, call: 0, result: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::reading::{Call, CallResult, MediaKind, Role};
    use proptest::prelude::*;
    use std::borrow::Cow;

    const COUNTERS: [TokenCounter; 4] = [
        TokenCounter { format: WireFormat::OpenaiChat, tokenizer: Tokenizer::O200k },
        TokenCounter { format: WireFormat::OpenaiChat, tokenizer: Tokenizer::Cl100k },
        TokenCounter { format: WireFormat::AnthropicMessages, tokenizer: Tokenizer::Estimate },
        TokenCounter { format: WireFormat::GeminiContents, tokenizer: Tokenizer::Estimate },
    ];

    fn reading<'a>(calls: Vec<Call<'a>>, results: Vec<CallResult<'a>>, parts: Vec<Part<'a>>) -> Reading<'a> {
        Reading { calls, results, parts, ..Reading::new(Role::Model) }
    }

    #[test]
    fn openai_vocabularies_are_counted_exactly() {
        let [o200k, cl100k, ..] = COUNTERS;
        assert_eq!(
            [o200k.count_text("hello world"), o200k.count_text("你好,世界"), o200k.count_text("1234567")],
            [2, 3, 3]
        );
        assert_eq!(
            [cl100k.count_text("hello world"), cl100k.count_text("你好,世界"), cl100k.count_text("1234567")],
            [2, 6, 3]
        );
        assert_eq!(COUNTERS.map(TokenCounter::is_exact), [true, true, false, false]);
    }

    #[test]
    fn an_entry_counts_its_decoded_text_its_json_its_names_and_its_overhead() {
        let [o200k, ..] = COUNTERS;
        let call = Call { id: None, name: Cow::Borrowed("read"), kind: Cow::Borrowed(""), index: 0 };
        let result = CallResult { id: None, name: Cow::Borrowed(""), kind: Cow::Borrowed(""), index: 0 };
        let parts = vec![
            Part::Text(br#""hello\u0020world""#),
            Part::Json(br#"{"path":"a"}"#),
            Part::Opaque(&[b'A'; 41]),
            Part::Media { kind: MediaKind::Image, base64: None },
        ];
        let json = o200k.count_text(r#"{"path":"a"}"#);
        assert_eq!(
            o200k.count_entry(&reading(vec![call], vec![result], parts)),
            (6 + 13 + 5) + o200k.count_text("read") + 2 + json + 11 + 1105
        );
        assert_eq!(o200k.count_entry(&reading(vec![], vec![], vec![])), 6);
    }

    #[test]
    fn a_block_of_no_known_kind_counts_by_its_bytes_wherever_it_stands() {
        use crate::format::read;
        use WireFormat::{
            AnthropicMessages, BedrockConverse, GeminiContents, Opaque, OpenaiChat, OpenaiResponses,
        };
        let block = format!(r#"{{"hologram":{{"frames":"{}"}}}}"#, "QUJD".repeat(1_000));
        let bytes = block.len() as u64;
        let places = [
            (OpenaiChat, r#"{"role":"user","content":[{"type":"text","text":"a"}BLOCK]}"#),
            (OpenaiChat, r#"{"role":"tool","tool_call_id":"a","content":[{"type":"text","text":"a"}BLOCK]}"#),
            (OpenaiResponses, r#"{"role":"user","content":[{"type":"input_text","text":"a"}BLOCK]}"#),
            (
                OpenaiResponses,
                r#"{"type":"function_call_output","call_id":"a","output":[{"type":"input_text","text":"a"}BLOCK]}"#,
            ),
            (AnthropicMessages, r#"{"role":"user","content":[{"type":"text","text":"a"}BLOCK]}"#),
            (
                AnthropicMessages,
                r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"a"}BLOCK]}]}"#,
            ),
            (GeminiContents, r#"{"role":"user","parts":[{"text":"a"}BLOCK]}"#),
            (
                GeminiContents,
                r#"{"role":"user","parts":[{"functionResponse":{"name":"a","response":{"output":"a"},"parts":[{"text":"a"}BLOCK]}}]}"#,
            ),
            (BedrockConverse, r#"{"role":"user","content":[{"text":"a"}BLOCK]}"#),
            (
                BedrockConverse,
                r#"{"role":"user","content":[{"toolResult":{"toolUseId":"a","content":[{"text":"a"}BLOCK]}}]}"#,
            ),
            (Opaque, r#"{"said":["a"BLOCK]}"#),
            // An entry as a whole.
            (OpenaiResponses, r#"{"type":"hologram","frames":[0BLOCK]}"#),
            (AnthropicMessages, r#"{"role":"narrator","frames":[0BLOCK]}"#),
        ];
        for (format, place) in places {
            let count = |block: &str| {
                let payload = place.replace("BLOCK", block);
                TokenCounter::new(format, Tokenizer::of_format(format))
                    .count_entry(&read(format, payload.as_bytes()))
            };
            let counted = count(&format!(",{block}")) - count("");
            assert!((bytes / 4..=bytes / 4 + 2).contains(&counted), "{format} {place}: {counted} of {bytes}");
        }
    }

    #[test]
    fn an_estimate_goes_by_the_script_and_not_by_characters_or_bytes() {
        // Tokens for a hundred characters: letters of a word share one, an ideograph has
        // one or two of its own.
        let texts = [
            ("The build fails on the second machine, and nobody knows why. ", 15..50),
            ("fn main() { let x = vec![1, 2, 3]; println!(\"{x:?}\"); } ", 30..100),
            ("这个构建在第二台机器上失败了,没有人知道原因。", 35..250),
            ("ビルドは二台目のマシンで失敗し、理由は誰にも分かりません。", 35..250),
            ("빌드가 두 번째 컴퓨터에서 실패하고 아무도 이유를 모릅니다. ", 25..250),
            ("Сборка падает на второй машине, и никто не знает почему. ", 15..110),
            ("يفشل البناء على الجهاز الثاني ولا أحد يعرف السبب. ", 15..150),
            ("दूसरी मशीन पर बिल्ड विफल होता है और कोई नहीं जानता क्यों। ", 15..200),
            ("การสร้างล้มเหลวบนเครื่องที่สองและไม่มีใครรู้ว่าทำไม ", 15..300),
        ];
        for counter in COUNTERS.into_iter().filter(|counter| !counter.is_exact()) {
            for (text, expected) in &texts {
                let characters = text.chars().count() as u64 * 10;
                let tokens = counter.count_text(&text.repeat(10)) * 100 / characters;
                assert!(expected.contains(&tokens), "{counter:?}: {tokens} for {text}");
            }
        }
    }

    #[test]
    fn text_without_breaks_is_counted_without_a_panic() {
        for piece in ["a", " ", "\n", "=", "é", "你", "😀", "\u{301}", "A1", " \n", "\u{0}", "'s", "\u{a0}"]
        {
            let text = piece.repeat(20_000);
            for counter in COUNTERS {
                let tokens = counter.count_text(&text);
                assert!(0 < tokens && tokens <= text.len() as u64, "{counter:?} {piece:?}: {tokens}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_text_has_between_one_token_and_as_many_as_bytes(text in "\\PC*|.*|[a-z \n]{0,300}") {
            for counter in COUNTERS {
                let tokens = counter.count_text(&text);
                prop_assert_eq!(tokens == 0, text.is_empty());
                prop_assert!(tokens <= text.len() as u64 + 1);
            }
        }

        #[test]
        fn counts_add_up_over_concatenation(a in "\\PC{0,200}", b in "\\PC{0,200}") {
            for counter in COUNTERS {
                let whole = counter.count_text(&format!("{a}{b}"));
                let sum = counter.count_text(&a) + counter.count_text(&b);
                prop_assert!(whole.abs_diff(sum) <= 8, "{} against {}", whole, sum);
            }
        }

        #[test]
        fn an_estimate_never_falls_when_text_is_added(a in "\\PC{0,200}", b in "\\PC{0,200}") {
            for counter in COUNTERS.into_iter().filter(|counter| !counter.is_exact()) {
                let whole = format!("{a}{b}");
                prop_assert!(counter.count_text(&a) <= counter.count_text(&whole));
            }
        }

        #[test]
        fn any_bytes_of_a_part_are_counted(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for counter in COUNTERS {
                for part in [
                    Part::Text(&bytes),
                    Part::Json(&bytes),
                    Part::Opaque(&bytes),
                    Part::Media { kind: MediaKind::Image, base64: Some(&bytes) },
                    Part::Media { kind: MediaKind::Document, base64: Some(&bytes) },
                    Part::Media { kind: MediaKind::Recording, base64: Some(&bytes) },
                ] {
                    counter.count_entry(&reading(vec![], vec![], vec![part]));
                }
            }
        }
    }
}
