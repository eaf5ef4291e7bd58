//! What happens in a conversation, as messages of its wire format.

use super::{Answer, Call, Event, Text, Unknown, entry, mark};
use serde_json::{Value, json};
use turnkeep::model::{Entry, EntryKind, Seq, WireFormat};

/// A call that was made.
#[derive(Clone, Debug)]
struct Made {
    id: String,
    name: &'static str,
    kind: &'static str,
}

/// Writes down what happens, in a wire format.
pub(super) struct Writer {
    format: WireFormat,
    pub(super) entries: Vec<Entry>,
    calls: Vec<Made>,
    /// Varies the format: ids or none, signatures or none, other spelling.
    options: [bool; 3],
    /// Whether one answer in eight has the id of an earlier one, results have
    /// blank text in them, and words come before the results they go with.
    pub(super) is_disorderly: bool,
}

impl Writer {
    pub(super) fn new(format: WireFormat, options: [bool; 3]) -> Self {
        Self { format, entries: Vec::new(), calls: Vec::new(), options, is_disorderly: false }
    }

    fn seq(&self) -> Seq {
        Seq(self.entries.len() as u64 + 1)
    }

    fn push(&mut self, kind: EntryKind, message: &Value) {
        let text = if self.options[2] {
            serde_json::to_string(message)
        } else {
            serde_json::to_string_pretty(message)
        };
        self.entries.push(entry(self.seq().0, kind, text.unwrap().replace('\n', " ")));
    }

    fn message(&mut self, message: &Value) {
        self.push(EntryKind::Message, message);
    }

    /// Text of the next entry.
    fn text(&self, text: Text) -> Option<String> {
        match text {
            Text::None => None,
            Text::Some => Some(format!("é \"{}\" \u{1f600}", mark(self.seq()))),
            Text::Empty => Some(String::new()),
            Text::Blank => Some(" \n\t".to_owned()),
        }
    }

    pub(super) fn write(&mut self, event: &Event) {
        match event {
            Event::User(text) => self.user(*text),
            Event::Picture => self.picture(),
            Event::Model(answer) => self.answer(answer),
            Event::Results(back, text) => {
                let count = self.calls.len();
                let calls = back
                    .iter()
                    .filter_map(|back| Some(self.calls.get(count.checked_sub(back + 1)?)?.clone()));
                let calls: Vec<_> = calls.collect();
                self.results(&calls, *text);
            }
            Event::Orphan => {
                let kind = if self.format == WireFormat::OpenaiResponses { "function_call" } else { "" };
                self.results(&[Made { id: "call_nobody".into(), name: "nothing", kind }], Text::None);
            }
            Event::System => {
                let text = self.text(Text::Some);
                let message = match self.format {
                    WireFormat::GeminiContents => json!({"role": "system", "parts": [{"text": text}]}),
                    WireFormat::BedrockConverse => json!({"role": "system", "content": [{"text": text}]}),
                    _ => json!({"role": "system", "content": text}),
                };
                self.message(&message);
            }
            Event::Meta => {
                self.push(EntryKind::Meta, &json!({"role": "user", "content": "meta", "parts": []}));
            }
            Event::Unknown(unknown) => self.unknown(*unknown),
            Event::Again => {
                if let Some(last) = self.entries.last().cloned() {
                    self.entries.push(Entry { seq: self.seq(), ..last });
                }
            }
        }
    }

    fn user(&mut self, text: Text) {
        let text = self.text(text);
        let message = match self.format {
            WireFormat::OpenaiChat => json!({"role": "user", "content": text}),
            WireFormat::OpenaiResponses if self.options[0] => json!({"role": "user", "content": text}),
            WireFormat::OpenaiResponses => {
                let content: Vec<_> =
                    text.iter().map(|text| json!({"type": "input_text", "text": text})).collect();
                json!({"type": "message", "role": "user", "content": content})
            }
            WireFormat::AnthropicMessages if self.options[0] => {
                json!({"role": "user", "content": text.unwrap_or_default()})
            }
            WireFormat::AnthropicMessages => {
                let block = |text: &String| {
                    let mut block = json!({"type": "text", "text": text});
                    if self.is_disorderly {
                        // Workers mark the end of what they send.
                        block["cache_control"] = json!({"type": "ephemeral"});
                    }
                    block
                };
                json!({"role": "user", "content": text.iter().map(block).collect::<Vec<_>>()})
            }
            WireFormat::BedrockConverse => {
                let content: Vec<_> = text.iter().map(|text| json!({"text": text})).collect();
                json!({"role": "user", "content": content})
            }
            WireFormat::GeminiContents => {
                let parts: Vec<_> = text.iter().map(|text| json!({"text": text})).collect();
                json!({"role": "user", "parts": parts})
            }
            WireFormat::Opaque => json!({"says": text}),
        };
        self.message(&message);
    }

    fn picture(&mut self) {
        const DATA: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";
        let text = self.text(Text::Some);
        let url = format!("data:image/png;base64,{DATA}");
        let message = match self.format {
            WireFormat::OpenaiChat => {
                json!({"role": "user", "content": [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]})
            }
            WireFormat::OpenaiResponses => {
                json!({"role": "user", "content": [{"type": "input_text", "text": text}, {"type": "input_image", "image_url": url}]})
            }
            WireFormat::AnthropicMessages => {
                let source = json!({"type": "base64", "media_type": "image/png", "data": DATA});
                json!({"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": text}]})
            }
            WireFormat::BedrockConverse => {
                let image = json!({"format": "png", "source": {"bytes": DATA}});
                json!({"role": "user", "content": [{"image": image}, {"text": text}]})
            }
            WireFormat::GeminiContents => {
                let inline = json!({"mimeType": "image/png", "data": DATA});
                json!({"role": "user", "parts": [{"inlineData": inline}, {"text": text}]})
            }
            WireFormat::Opaque => json!({"shows": DATA, "says": text}),
        };
        self.message(&message);
    }

    /// Makes the ids of calls.
    fn make(&mut self, calls: &[Call]) -> Vec<Made> {
        const NAMES: [&str; 3] = ["read", "write", "run-it"];
        let mut made = Vec::new();
        for call in calls {
            let number = self.calls.len() + made.len();
            let prefix = if self.format == WireFormat::AnthropicMessages { "toolu" } else { "call" };
            let mut id = format!("{prefix}_{number}");
            if call.reuses
                && let Some(earlier) = self.calls.iter().chain(&made).nth(number / 2)
            {
                id.clone_from(&earlier.id);
            }
            let kind = match self.format {
                WireFormat::OpenaiResponses => ["function_call", "custom_tool_call", "tool_search_call"]
                    [usize::from(call.is_odd) * usize::from(call.tool)],
                WireFormat::OpenaiChat if call.is_odd && calls.len() == 1 => "function",
                _ => "",
            };
            match self.format {
                WireFormat::AnthropicMessages | WireFormat::BedrockConverse if call.is_odd => {
                    id.push_str("|fc:1");
                }
                // As clients of another API made it: longer than this one takes.
                WireFormat::OpenaiChat if call.is_odd => id.push_str(&"0".repeat(40)),
                WireFormat::OpenaiResponses if call.is_odd => id.push_str(&"0".repeat(60)),
                WireFormat::GeminiContents if !self.options[0] => id.clear(),
                _ => {}
            }
            made.push(Made { id, name: NAMES[usize::from(call.tool)], kind });
        }
        made
    }

    fn answer(&mut self, answer: &Answer) {
        let made = self.make(&answer.calls);
        match self.format {
            WireFormat::OpenaiChat => self.chat_answer(answer, &made),
            WireFormat::OpenaiResponses => self.responses_answer(answer, &made),
            WireFormat::AnthropicMessages => self.anthropic_answer(answer, &made),
            WireFormat::BedrockConverse => self.bedrock_answer(answer, &made),
            WireFormat::GeminiContents => self.gemini_answer(answer, &made),
            WireFormat::Opaque => self.message(&json!({"answers": self.text(answer.text)})),
        }
        self.calls.extend(made);
    }

    fn chat_answer(&mut self, answer: &Answer, made: &[Made]) {
        let mut message = json!({"role": "assistant", "content": self.text(answer.text)});
        if answer.reasons {
            message["reasoning_content"] = json!("hm");
        }
        if let [Made { name, kind: "function", .. }] = made {
            message["function_call"] = json!({"name": name, "arguments": "{}"});
        } else if !made.is_empty() {
            let call = |made: &Made| json!({"id": made.id, "type": "function", "function": {"name": made.name, "arguments": "{\"a\": 1.0}"}});
            message["tool_calls"] = made.iter().map(call).collect();
        }
        self.message(&message);
    }

    fn responses_answer(&mut self, answer: &Answer, made: &[Made]) {
        let reasoning = |seq: Seq| json!({"type": "reasoning", "id": format!("rs_{seq}"), "summary": [{"type": "summary_text", "text": mark(seq)}], "encrypted_content": "gAAA"});
        if answer.reasons {
            self.message(&reasoning(self.seq()));
        }
        if let Some(is_done) = answer.searches {
            let status = if is_done { "completed" } else { "failed" };
            self.message(&json!({"type": "web_search_call", "id": format!("ws_{}", self.seq()), "status": status, "action": {"type": "search", "query": mark(self.seq())}}));
        }
        if let Some(text) = self.text(answer.text) {
            let repeats = self.is_disorderly && self.seq().0.is_multiple_of(8);
            let id = format!("msg_{}", if repeats { 8 } else { self.seq().0 });
            self.message(&json!({"type": "message", "role": "assistant", "id": id, "content": [{"type": "output_text", "text": text, "annotations": []}]}));
        }
        for made in made {
            let [seq, kind] = [&self.seq().to_string(), made.kind];
            let id = format!("{}_{seq}", if kind == "function_call" { "fc" } else { "ctc" });
            let text = mark(self.seq());
            self.message(&match kind {
                "tool_search_call" => json!({"type": kind, "execution": "client", "call_id": made.id, "id": id, "arguments": {"query": text}}),
                "custom_tool_call" => json!({"type": kind, "call_id": made.id, "id": id, "name": made.name, "input": text}),
                _ => json!({"type": kind, "call_id": made.id, "id": id, "name": made.name, "arguments": text}),
            });
        }
        if answer.ends_with_reasoning {
            self.message(&reasoning(self.seq()));
        }
    }

    fn anthropic_answer(&mut self, answer: &Answer, made: &[Made]) {
        let mut content = Vec::new();
        let thinking = json!({"type": "thinking", "thinking": "", "signature": "Eo8+/=="});
        if answer.reasons {
            content.push(if self.options[1] {
                json!({"type": "redacted_thinking", "data": "Eo8"})
            } else {
                thinking.clone()
            });
        }
        content.extend(self.text(answer.text).map(|text| json!({"type": "text", "text": text})));
        // The provider may also wait for the worker's tools with its own.
        if let Some(is_done) = answer.searches.filter(|is_done| *is_done || made.is_empty()) {
            let id = format!("srvtoolu_{}", self.seq());
            content.push(json!({"type": "server_tool_use", "id": id, "name": "web_search", "input": {}}));
            if is_done {
                content.push(json!({"type": "web_search_tool_result", "tool_use_id": id, "content": []}));
            }
        }
        content
            .extend(made.iter().map(
                |made| json!({"type": "tool_use", "id": made.id, "name": made.name, "input": {"n": 1}}),
            ));
        if answer.ends_with_reasoning && made.is_empty() {
            content.push(thinking);
        }
        self.message(&json!({"role": "assistant", "content": content}));
    }

    fn bedrock_answer(&mut self, answer: &Answer, made: &[Made]) {
        let mut content = Vec::new();
        let reasoning = json!({"reasoningContent": {"reasoningText": {"text": "hm", "signature": "Eo8"}}});
        if answer.reasons {
            content.push(reasoning.clone());
        }
        content.extend(self.text(answer.text).map(|text| json!({"text": text})));
        content
            .extend(made.iter().map(
                |made| json!({"toolUse": {"toolUseId": made.id, "name": made.name, "input": {"n": 1}}}),
            ));
        if answer.ends_with_reasoning && made.is_empty() {
            content.push(reasoning);
        }
        self.message(&json!({"role": "assistant", "content": content}));
    }

    fn gemini_answer(&mut self, answer: &Answer, made: &[Made]) {
        let mut parts = Vec::new();
        if answer.reasons {
            parts.push(json!({"text": "hm", "thought": true}));
        }
        parts.extend(self.text(answer.text).map(|text| json!({"text": text})));
        for (index, made) in made.iter().enumerate() {
            let mut call = json!({"name": made.name, "args": {"n": 1}});
            if !made.id.is_empty() {
                call["id"] = json!(made.id);
            }
            let mut part = json!({"functionCall": call});
            // Only the first of parallel calls is signed.
            if self.options[1] && index == 0 {
                part["thoughtSignature"] = json!("Eo8=");
            }
            parts.push(part);
        }
        self.message(&json!({"role": "model", "parts": parts}));
    }

    fn results(&mut self, calls: &[Made], text: Text) {
        match self.format {
            WireFormat::OpenaiChat => {
                for call in calls {
                    let text = mark(self.seq());
                    self.message(&match call.kind {
                        "function" => json!({"role": "function", "name": call.name, "content": text}),
                        _ => json!({"role": "tool", "tool_call_id": call.id, "content": text}),
                    });
                }
            }
            WireFormat::OpenaiResponses => {
                for call in calls {
                    let text = mark(self.seq());
                    self.message(&match call.kind {
                        "tool_search_call" => {
                            json!({"type": "tool_search_output", "call_id": call.id, "tools": [text]})
                        }
                        kind => json!({"type": format!("{kind}_output"), "call_id": call.id, "output": text}),
                    });
                }
            }
            WireFormat::Opaque => {}
            _ => return self.result_message(calls, text),
        }
        if text != Text::None {
            self.user(text);
        }
    }

    fn result_message(&mut self, calls: &[Made], text: Text) {
        let said = mark(self.seq());
        let text = self.text(text);
        let result = |made: &Made| match self.format {
            WireFormat::AnthropicMessages if self.options[0] => {
                json!({"type": "tool_result", "tool_use_id": made.id, "content": said})
            }
            WireFormat::AnthropicMessages => {
                let blank = json!({"type": "text", "text": ""});
                let content = if self.is_disorderly && made.name == "write" {
                    json!([blank, {"type": "text", "text": said}])
                } else {
                    json!([{"type": "text", "text": said}])
                };
                json!({"type": "tool_result", "tool_use_id": made.id, "content": content, "is_error": false})
            }
            WireFormat::BedrockConverse => {
                json!({"toolResult": {"toolUseId": made.id, "content": [{"text": said}], "status": "success"}})
            }
            _ => {
                let mut response = json!({"name": made.name, "response": {"output": said}});
                if !made.id.is_empty() {
                    response["id"] = json!(made.id);
                }
                json!({"functionResponse": response})
            }
        };
        let mut content: Vec<_> = calls.iter().map(result).collect();
        content.extend(text.iter().map(|text| match self.format {
            WireFormat::AnthropicMessages => json!({"type": "text", "text": text}),
            _ => json!({"text": text}),
        }));
        // A word that comes before the results it is sent with.
        if self.is_disorderly && self.seq().0.is_multiple_of(5) {
            content.reverse();
        }
        let is_functions = self.format == WireFormat::GeminiContents && self.options[2] && text.is_none();
        let role = if is_functions { "function" } else { "user" };
        let member = if self.format == WireFormat::GeminiContents { "parts" } else { "content" };
        self.message(&json!({"role": role, member: content, "x-extra": 1}));
    }

    fn unknown(&mut self, unknown: Unknown) {
        let said = mark(self.seq());
        let member = if self.format == WireFormat::GeminiContents { "parts" } else { "content" };
        self.message(&match (unknown, self.format) {
            (Unknown::Role, _) => json!({"role": "critic", member: [{"type": "text", "text": said}]}),
            (Unknown::Block, WireFormat::OpenaiResponses) => {
                json!({"type": "mystery", "id": format!("my_{}", self.seq()), "what": said})
            }
            (Unknown::Block, _) => {
                json!({"role": "user", member: [{"type": "mystery", "what": said}, {"mystery": 1}]})
            }
        });
    }
}
