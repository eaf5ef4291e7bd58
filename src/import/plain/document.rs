//! Documents around conversations: requests, responses, recorded exchanges,
//! and logs of frameworks.

use super::{Conversation, Draft, draft, elements, wire};
use crate::import::json::{Object, compose};
use crate::model::{Usage, WireFormat};
use bytes::Bytes;
use std::borrow::Cow;

/// Fields of documents that hold a conversation's messages: of requests, of
/// SWE-agent and the Gemini CLI, of tau-bench, of the Agent Development Kit, and
/// of tau2.
const LISTS: [&str; 6] = ["messages", "contents", "history", "traj", "events", "ticks"];

/// The conversations of one document; none if it holds none, or only such that
/// no API takes and `opaque` is false.
pub(super) fn conversations(
    raw: &str,
    forced: Option<WireFormat>,
    opaque: bool,
) -> Option<Vec<Conversation<'_>>> {
    let reader = Reader { forced, opaque };
    if let Some(messages) = elements(raw) {
        let format = reader.format(&messages, None)?;
        return Some(vec![super::list(&messages, format)]);
    }
    let document = Object::parse(raw)?;
    let Some(samples) = document.elements("samples").filter(|samples| !samples.is_empty()) else {
        return Some(vec![reader.conversation(raw, &document)?]);
    };
    // A log of inspect_ai.
    let samples = samples.into_iter().map(|sample| reader.conversation(sample, &Object::parse(sample)?));
    let mut conversations: Vec<_> = samples.collect::<Option<_>>()?;
    if let Some(main) = conversations.first_mut() {
        main.drafts.splice(0..0, rest(raw, &document, &["samples"]));
    }
    Some(conversations)
}

/// How documents are read.
#[derive(Clone, Copy)]
struct Reader {
    /// The format that the caller gives.
    forced: Option<WireFormat>,
    /// Whether a list that no API takes is opened.
    opaque: bool,
}

/// What the model answered.
struct Answer<'a> {
    format: WireFormat,
    drafts: Vec<Draft<'a>>,
    usage: Option<Usage>,
    /// Fields that it was taken from.
    taken: &'static [&'static str],
}

impl Reader {
    /// The format of a list.
    fn format(self, messages: &[&str], hint: Option<WireFormat>) -> Option<WireFormat> {
        match self.forced {
            Some(format) => wire::may_be(messages, format).then_some(format),
            None => wire::format(messages, hint).or(self.opaque.then_some(WireFormat::Opaque)),
        }
    }

    fn conversation<'a>(self, raw: &'a str, document: &Object<'a>) -> Option<Conversation<'a>> {
        self.exchange(raw, document).or_else(|| self.of_document(raw, document, hint(document)))
    }

    fn of_document<'a>(
        self,
        raw: &'a str,
        document: &Object<'a>,
        hint: Option<WireFormat>,
    ) -> Option<Conversation<'a>> {
        let list = LISTS.iter().find_map(|key| self.listed(raw, document, key, hint));
        list.or_else(|| self.responses_request(raw, document)).or_else(|| self.answered(raw, document))
    }

    /// A recorded HTTP exchange.
    fn exchange<'a>(self, raw: &'a str, document: &Object<'a>) -> Option<Conversation<'a>> {
        let request = document.object("request")?;
        let body = request.get("body")?;
        let response = document.object("response");
        let answer = response.as_ref().and_then(|response| format_of_answer(response.get("body")?));
        let request_body = Object::parse(body)?;
        let hint = answer.or_else(|| hint(&request_body));
        let mut conversation = self.of_document(body, &request_body, hint)?;
        let mut around = rest(raw, document, &["request", "response"]);
        around.extend(rest(raw, &request, &["body"]));
        if let Some(response) = &response {
            let body = response.get("body").and_then(|raw| Some((raw, Object::parse(raw)?)));
            match body {
                Some((raw, body)) if conversation.append(raw, &body) => {
                    around.extend(rest(raw, response, &["body"]));
                }
                _ => around.extend(rest(raw, response, &[])),
            }
        }
        conversation.drafts.splice(0..0, around);
        Some(conversation)
    }

    /// A document with a list, and perhaps the response to it.
    fn listed<'a>(
        self,
        raw: &'a str,
        document: &Object<'a>,
        key: &'static str,
        hint: Option<WireFormat>,
    ) -> Option<Conversation<'a>> {
        let list = document.elements(key).filter(|list| !list.is_empty())?;
        let contents: Vec<_> = list.iter().filter_map(|element| content_of_event(element)).collect();
        let (format, drafts) = if contents.is_empty() {
            let format = self.format(&list, hint)?;
            (format, list.iter().map(|message| draft(message, format)).collect())
        } else {
            let event = |element: &&'a str| match content_of_event(element) {
                Some(content) => Draft::message(content),
                None => Draft::record(element, compose(&[("value", element)])),
            };
            (self.format(&contents, hint)?, list.iter().map(event).collect::<Vec<_>>())
        };
        Some(Conversation::around(raw, document, format, drafts, key))
    }

    /// A request to OpenAI Responses: its input is text or items.
    fn responses_request<'a>(self, raw: &'a str, document: &Object<'a>) -> Option<Conversation<'a>> {
        let format = WireFormat::OpenaiResponses;
        if self.forced.is_some_and(|forced| forced != format) {
            return None;
        }
        let input = document.get("input")?;
        let drafts = match elements(input) {
            Some(items) => {
                let is_request = document.get("model").is_some() && wire::may_be(&items, format);
                (is_request || wire::format(&items, None) == Some(format)).then_some(())?;
                items.into_iter().map(|item| draft(item, format)).collect()
            }
            None if input.starts_with('"') && document.get("model").is_some() => {
                vec![Draft::composed(input, compose(&[("role", "\"user\""), ("content", input)]))]
            }
            None => return None,
        };
        Some(Conversation::around(raw, document, format, drafts, "input"))
    }

    /// A response on its own.
    fn answered<'a>(self, raw: &'a str, document: &Object<'a>) -> Option<Conversation<'a>> {
        let answer = answer(raw, document)?;
        if self.forced.is_some_and(|forced| forced != answer.format) {
            return None;
        }
        let (preamble, mut taken) = preamble(document, answer.format);
        taken.extend(answer.taken);
        let mut drafts = rest(raw, document, &taken);
        drafts.extend(answer.drafts);
        Some(Conversation { format: answer.format, id: id(document), preamble, drafts, usage: answer.usage })
    }
}

impl<'a> Conversation<'a> {
    /// A conversation whose messages are in the field `key` of a document, with
    /// what else the document holds.
    fn around(
        raw: &'a str,
        document: &Object<'a>,
        format: WireFormat,
        messages: Vec<Draft<'a>>,
        key: &'static str,
    ) -> Self {
        let (preamble, mut taken) = preamble(document, format);
        taken.push(key);
        let mut conversation = Self { format, id: id(document), preamble, drafts: messages, usage: None };
        let response = document.get("response").and_then(|raw| Some((raw, Object::parse(raw)?)));
        if response.is_some_and(|(raw, response)| conversation.append(raw, &response)) {
            taken.push("response");
        } else if key == "input" && conversation.append(raw, document) {
            // What a response was made from may stand beside it.
            return conversation;
        }
        conversation.drafts.splice(0..0, rest(raw, document, &taken));
        conversation
    }

    /// Appends the answer in a response; false if it holds none in the same
    /// format.
    fn append(&mut self, raw: &'a str, response: &Object<'a>) -> bool {
        match answer(raw, response) {
            Some(answer) if answer.format == self.format => {
                self.drafts.extend(rest(raw, response, answer.taken));
                self.drafts.extend(answer.drafts);
                self.usage = answer.usage;
                true
            }
            _ => false,
        }
    }
}

/// The answer in a response of any of the APIs.
fn answer<'a>(raw: &'a str, response: &Object<'a>) -> Option<Answer<'a>> {
    let text = |key| response.text(key).unwrap_or_default();
    let of = |format, drafts, taken| Answer { format, drafts, usage: usage(response, format), taken };
    if text("type") == "message" && response.get("usage").or(response.get("stop_reason")).is_some() {
        let (role, content) = (response.get("role")?, response.get("content")?);
        let message = Draft::composed(raw, compose(&[("role", role), ("content", content)]));
        return Some(of(WireFormat::AnthropicMessages, vec![message], &["role", "content"]));
    }
    if let Some(choices) = response.elements("choices") {
        let message = Object::parse(choices.first()?)?.get("message")?;
        Object::parse(message)?.get("role")?;
        // Other choices were not gone on with: they stay in the record.
        let taken: &[&str] = if choices.len() == 1 { &["choices"] } else { &[] };
        return Some(of(WireFormat::OpenaiChat, vec![draft(message, WireFormat::OpenaiChat)], taken));
    }
    if let Some(output) = response.elements("output") {
        let format = WireFormat::OpenaiResponses;
        (text("object") == "response" || wire::format(&output, None) == Some(format)).then_some(())?;
        let items = output.into_iter().map(|item| draft(item, format)).collect();
        return Some(of(format, items, &["output"]));
    }
    if let Some(candidates) = response.elements("candidates") {
        let content = Object::parse(candidates.first()?)?.get("content")?;
        Object::parse(content)?.elements("parts")?;
        let taken: &[&str] = if candidates.len() == 1 { &["candidates"] } else { &[] };
        return Some(of(WireFormat::GeminiContents, vec![Draft::message(content)], taken));
    }
    let message = response.object("output")?.get("message")?;
    response.get("stopReason")?;
    Some(of(WireFormat::BedrockConverse, vec![Draft::message(message)], &["output"]))
}

/// What a document says about the API that its messages are for.
fn hint(document: &Object<'_>) -> Option<WireFormat> {
    if let Some(format) = document.get("response").and_then(format_of_answer) {
        return Some(format);
    }
    let tool = document.elements("tools").and_then(|tools| Object::parse(tools.first()?));
    match tool {
        Some(tool) if tool.get("input_schema").is_some() => Some(WireFormat::AnthropicMessages),
        Some(tool) if tool.get("function").is_some() => Some(WireFormat::OpenaiChat),
        _ => document.value("system").map(|_| WireFormat::AnthropicMessages),
    }
}

fn format_of_answer(response: &str) -> Option<WireFormat> {
    Some(answer(response, &Object::parse(response)?)?.format)
}

/// The Gemini content in an event of the Agent Development Kit.
fn content_of_event(raw: &str) -> Option<&str> {
    let event = Object::parse(raw)?;
    event.get("author")?;
    let content = event.get("content")?;
    Object::parse(content)?.elements("parts").map(|_| content)
}

/// The preamble in a document, and the fields that it was taken from.
fn preamble(document: &Object<'_>, format: WireFormat) -> (Option<Bytes>, Vec<&'static str>) {
    // Fields of a document and what the API calls them.
    let fields: &[(&str, &str)] = match format {
        WireFormat::OpenaiChat => &[("tools", "tools"), ("functions", "functions")],
        WireFormat::OpenaiResponses => &[("instructions", "instructions"), ("tools", "tools")],
        WireFormat::AnthropicMessages => {
            &[("system", "system"), ("system_prompt", "system"), ("tools", "tools")]
        }
        WireFormat::GeminiContents => &[
            ("systemInstruction", "systemInstruction"),
            ("system_instruction", "system_instruction"),
            ("tools", "tools"),
        ],
        WireFormat::BedrockConverse => &[("system", "system"), ("toolConfig", "toolConfig")],
        WireFormat::Opaque => &[],
    };
    let mut found: Vec<(&str, &str)> = Vec::new();
    let mut taken = Vec::new();
    for (key, name) in fields {
        let value = document.value(key).filter(|value| *value != "[]");
        if let Some(value) = value
            && found.iter().all(|(known, _)| known != name)
        {
            found.push((name, value));
            taken.push(*key);
        }
    }
    ((!found.is_empty()).then(|| compose(&found)), taken)
}

/// A record of what else an object holds.
fn rest<'a>(raw: &'a str, object: &Object<'a>, taken: &[&str]) -> Vec<Draft<'a>> {
    object.without(taken).into_iter().map(|payload| Draft::record(raw, payload)).collect()
}

fn id<'a>(document: &Object<'a>) -> Option<Cow<'a, str>> {
    ["sessionId", "session_id", "conversation_id", "scenarioId", "instance_id", "id"]
        .iter()
        .find_map(|key| document.text(key))
}

/// What a provider reported.
fn usage(response: &Object<'_>, format: WireFormat) -> Option<Usage> {
    let key = if format == WireFormat::GeminiContents { "usageMetadata" } else { "usage" };
    let usage = response.object(key)?;
    let model = ["model", "modelVersion"].iter().find_map(|key| response.text(key)).unwrap_or_default();
    let details = |key: &str, name: &str| usage.object(key).map_or(0, |details| details.number(name));
    let (input, output, read, written) = match format {
        WireFormat::OpenaiChat => {
            let read = details("prompt_tokens_details", "cached_tokens");
            (usage.number("prompt_tokens").saturating_sub(read), usage.number("completion_tokens"), read, 0)
        }
        WireFormat::OpenaiResponses => {
            let read = details("input_tokens_details", "cached_tokens");
            (usage.number("input_tokens").saturating_sub(read), usage.number("output_tokens"), read, 0)
        }
        WireFormat::GeminiContents => {
            let read = usage.number("cachedContentTokenCount");
            let output =
                usage.number("candidatesTokenCount").saturating_add(usage.number("thoughtsTokenCount"));
            (usage.number("promptTokenCount").saturating_sub(read), output, read, 0)
        }
        WireFormat::BedrockConverse => (
            usage.number("inputTokens"),
            usage.number("outputTokens"),
            usage.number("cacheReadInputTokens"),
            usage.number("cacheWriteInputTokens"),
        ),
        WireFormat::AnthropicMessages | WireFormat::Opaque => (
            usage.number("input_tokens"),
            usage.number("output_tokens"),
            usage.number("cache_read_input_tokens"),
            usage.number("cache_creation_input_tokens"),
        ),
    };
    Some(Usage {
        model: model.into_owned(),
        input_tokens: input,
        output_tokens: output,
        cache_read_tokens: read,
        cache_write_tokens: written,
        ..Usage::default()
    })
}
