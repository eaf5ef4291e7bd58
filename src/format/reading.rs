//! What a payload says, in terms that all wire formats share.
//!
//! A reading borrows from the payload and never stands in for it: it serves
//! pairing, counting and previews.

use std::borrow::Cow;

/// Who speaks in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// System or developer text inside the message list.
    System,
    /// The user, with content of their own.
    User,
    /// The model.
    Model,
    /// Nothing but results of calls.
    Results,
    /// None that the format knows.
    Unknown,
}

/// How a call is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// Its id; none where the format leaves it out.
    pub id: Option<Cow<'a, str>>,
    /// The tool's name; empty if there is none.
    pub name: Cow<'a, str>,
    /// Which kind of call it is, where a format has several that pair with
    /// results of their own: the `type` of a Responses item. Empty elsewhere.
    pub kind: Cow<'a, str>,
    /// Index of the block or part that holds it; 0 where the entry is the call.
    pub index: usize,
}

/// How a result names its call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallResult<'a> {
    /// The call's id; none where the format leaves it out.
    pub id: Option<Cow<'a, str>>,
    /// The tool's name, where the result gives it; else empty.
    pub name: Cow<'a, str>,
    /// Which kind of result it is: the `type` of a Responses item. Empty
    /// elsewhere.
    pub kind: Cow<'a, str>,
    /// Index of the block or part that holds it; 0 where the entry is the
    /// result.
    pub index: usize,
}

/// What kind of media a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MediaKind {
    /// A picture.
    Image,
    /// A document, such as a PDF.
    Document,
    /// Sound or film.
    Recording,
}

/// A part of an entry that counts towards its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Text that the model reads: the raw JSON string token, quotes included.
    Text(&'a [u8]),
    /// JSON that the model reads as JSON, such as a call's arguments or a
    /// function response: the raw token.
    Json(&'a [u8]),
    /// A picture, document or recording.
    Media {
        /// What it is.
        kind: MediaKind,
        /// Its data in base64, if it is inline: the bytes between the quotes,
        /// without a `data:` prefix.
        base64: Option<&'a [u8]>,
    },
    /// A block that the format does not know, or an opaque one: counted by its
    /// bytes.
    Opaque(&'a [u8]),
}

/// What a payload says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading<'a> {
    /// Who speaks.
    pub role: Role,
    /// The calls that it makes, in order.
    pub calls: Vec<Call<'a>>,
    /// The results that it gives, in order.
    pub results: Vec<CallResult<'a>>,
    /// What counts towards its tokens, in order.
    pub parts: Vec<Part<'a>>,
}
