//! Gemini contents.

use super::{ARGUMENTS, ID, Mends, NO_OBJECT, Object, RESULT, WRONG_SPEAKER};
use crate::format::json::Value;

/// Members of a part that hold its data, one in each part, in either spelling.
/// What the model does counts for more than what it says.
const DATA: &[[&str; 2]] = &[
    ["functionCall", "function_call"],
    ["functionResponse", "function_response"],
    ["executableCode", "executable_code"],
    ["codeExecutionResult", "code_execution_result"],
    ["inlineData", "inline_data"],
    ["fileData", "file_data"],
    ["text", "text"],
];

const SIGNATURE: [&str; 2] = ["thoughtSignature", "thought_signature"];

const ROLE: &str = "the role";
const SEVERAL: &str = "a part with several kinds of data";
const UNSOUND: &str = "a part whose data are of the wrong type";
const UNNAMED: &str = "a call or response without a name";
const NO_SIGNATURE: &str = "a signature that is none";

pub(super) fn admit(content: &mut Object<'_>, mends: &mut Mends) {
    let role = content.text("role").map(std::borrow::Cow::into_owned);
    let is_model = match role.as_deref() {
        Some("model") => true,
        None | Some("user" | "function") => false,
        Some(_) => return,
    };
    content.each("parts", |part| admit_part(part, is_model, mends));
    let is_response = |part: Value<'_>| part.get(["functionResponse", "function_response"]) != [None, None];
    let is_for_responses = role.as_deref() == Some("function");
    let mut parts = content.get("parts").into_iter().flat_map(Value::elements);
    if role.is_none() || (is_for_responses && !parts.all(is_response)) {
        content.set("role", b"\"user\"");
        mends.replaced(ROLE);
    }
}

fn admit_part(part: &mut Object<'_>, is_model: bool, mends: &mut Mends) -> bool {
    if !part.value().is_object() {
        return mends.omitted(NO_OBJECT);
    }
    admit_signature(part, mends);
    let Some(kind) = admit_kind(part, mends) else { return mends.omitted(NO_OBJECT) };
    match kind {
        "functionCall" | "functionResponse" if (kind == "functionCall") != is_model => {
            return mends.omitted(WRONG_SPEAKER);
        }
        _ => {}
    }
    let Some(name) = spelling(part, kind) else { return true };
    let data = part.get(name);
    let is_object = data.is_some_and(Value::is_object);
    match kind {
        "text" => return data.is_some_and(Value::is_string) || mends.omitted(UNSOUND),
        _ if !is_object => return mends.omitted(UNSOUND),
        "inlineData" => return has_media(part, name) || mends.omitted(UNSOUND),
        "functionCall" | "functionResponse" => {}
        _ => return true,
    }
    let is_named = data.and_then(|data| data.member("name")).and_then(Value::text);
    if is_named.is_none_or(|name| name.is_empty()) {
        return mends.omitted(UNNAMED);
    }
    part.within(name, |data| {
        if data.get("id").is_some() && data.text("id").is_none_or(|id| id.is_empty()) {
            data.remove(&["id"]);
            mends.replaced(ID);
        }
        if kind == "functionResponse" {
            admit_response(data, mends);
        } else if data.has("args") && !data.get("args").is_some_and(Value::is_object) {
            data.set("args", b"{}");
            mends.replaced(ARGUMENTS);
        }
    });
    true
}

/// The spelling in which a part has its data.
fn spelling(part: &Object<'_>, kind: &str) -> Option<&'static str> {
    let spellings = DATA.iter().find(|[camel, _]| *camel == kind)?;
    spellings.iter().copied().find(|name| part.has(name))
}

/// What a part holds; none if it is nothing. Of several data the first are
/// kept.
fn admit_kind(part: &mut Object<'_>, mends: &mut Mends) -> Option<&'static str> {
    let present = |part: &Object<'_>| -> Vec<_> {
        let data = DATA.iter().flat_map(|[camel, snake]| [(*camel, *camel), (*camel, *snake)]);
        let mut names: Vec<_> = data.filter(|(_, name)| part.has(name)).collect();
        names.dedup();
        names
    };
    let names = present(part);
    let Some(((kind, _), others)) = names.split_first() else {
        // The signature of an answer may stand alone.
        if SIGNATURE.iter().all(|name| !part.has(name)) {
            return None;
        }
        part.set("text", b"\"\"");
        mends.replaced(UNSOUND);
        return Some("text");
    };
    if !others.is_empty() {
        let others: Vec<_> = others.iter().map(|(_, name)| *name).collect();
        part.remove(&others);
        mends.replaced(SEVERAL);
    }
    Some(kind)
}

fn has_media(part: &Object<'_>, name: &str) -> bool {
    let [camel, snake, data] =
        part.get(name).map(|data| data.get(["mimeType", "mime_type", "data"])).unwrap_or_default();
    let mime_type = camel.filter(|camel| !camel.is_null()).or(snake).and_then(Value::text);
    mime_type.is_some_and(|mime_type| !mime_type.is_empty()) && data.is_some_and(Value::is_string)
}

fn admit_response(data: &mut Object<'_>, mends: &mut Mends) {
    if data.get("response").is_some_and(Value::is_object) {
        return;
    }
    let response = match data.get("response").filter(|response| !response.is_null()) {
        Some(response) => [b"{\"output\":", response.bytes(), b"}"].concat(),
        None => b"{}".to_vec(),
    };
    data.set("response", &response);
    mends.replaced(RESULT);
}

fn admit_signature(part: &mut Object<'_>, mends: &mut Mends) {
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/-_=".contains(&byte);
    let is_sound = |text: &str| !text.is_empty() && text.bytes().all(is_base64);
    let is_wrong = |name: &str| part.has(name) && !part.text(name).is_some_and(|text| is_sound(&text));
    if SIGNATURE.iter().any(|name| is_wrong(name)) {
        part.remove(&SIGNATURE);
        mends.replaced(NO_SIGNATURE);
    }
}
