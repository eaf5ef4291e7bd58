//! An object of a payload that is looked through and, where something is wrong
//! with it, changed: one value at a time, every other byte as it was.

use crate::format::json::Value;
use std::borrow::Cow;
use std::cell::OnceCell;

/// A JSON value of a payload, an object as a rule; the recorded one as long as
/// nothing is changed.
#[derive(Debug)]
pub(super) enum Object<'a> {
    /// With its members, which are looked for once.
    Recorded(Value<'a>, OnceCell<Vec<(Value<'a>, Value<'a>)>>),
    Changed(Vec<u8>),
}

impl<'a> Object<'a> {
    pub(super) fn of(value: Value<'a>) -> Self {
        Self::Recorded(value, OnceCell::new())
    }

    /// Its bytes, if it was changed.
    pub(super) fn into_changed(self) -> Option<Vec<u8>> {
        match self {
            Self::Recorded(..) => None,
            Self::Changed(bytes) => Some(bytes),
        }
    }

    pub(super) fn value(&self) -> Value<'_> {
        match self {
            Self::Recorded(value, _) => *value,
            Self::Changed(bytes) => Value::of(bytes),
        }
    }

    /// The member of that name: the last one, as [`Value::member`] has it.
    pub(super) fn get(&self, name: &str) -> Option<Value<'_>> {
        match self {
            Self::Recorded(value, members) => {
                let members = members.get_or_init(|| value.members().collect());
                members.iter().rev().find(|(key, _)| key.is_text(name)).map(|(_, value)| *value)
            }
            Self::Changed(bytes) => Value::of(bytes).member(name),
        }
    }

    /// How many members it has.
    pub(super) fn members(&self) -> usize {
        match self {
            Self::Recorded(value, members) => members.get_or_init(|| value.members().collect()).len(),
            Self::Changed(bytes) => Value::of(bytes).members().count(),
        }
    }

    pub(super) fn is_string(&self, name: &str) -> bool {
        self.get(name).is_some_and(Value::is_string)
    }

    /// The text of a member; none if it is no string.
    pub(super) fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        self.get(name).and_then(Value::text)
    }

    /// Whether a member is there and not `null`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !value.is_null())
    }

    /// Becomes another value.
    pub(super) fn replace(&mut self, token: impl Into<Vec<u8>>) {
        *self = Self::Changed(token.into());
    }

    /// Gives a member another value, or adds it.
    pub(super) fn set(&mut self, name: &str, token: &[u8]) {
        let object = self.value();
        let (bytes, start) = (object.bytes(), object.range().start);
        let changed = match object.member(name) {
            Some(value) => {
                let before = bytes.get(..value.range().start - start).unwrap_or_default();
                let after = bytes.get(value.range().end - start..).unwrap_or_default();
                [before, token, after].concat()
            }
            None if object.is_object() => {
                let separator: &[u8] = if object.members().next().is_some() { b"," } else { b"" };
                let rest = bytes.get(1..).unwrap_or_default();
                [b"{\"", name.as_bytes(), b"\":", token, separator, rest].concat()
            }
            None => return,
        };
        self.replace(changed);
    }

    /// Takes members away.
    pub(super) fn remove(&mut self, names: &[&str]) {
        let object = self.value();
        let (bytes, start) = (object.bytes(), object.range().start);
        let mut kept = Vec::new();
        for (key, value) in object.members() {
            if !names.iter().any(|name| key.is_text(name)) {
                let member = key.range().start - start..value.range().end - start;
                kept.push(bytes.get(member).unwrap_or_default());
            }
        }
        self.replace([b"{", kept.join(&b","[..]).as_slice(), b"}"].concat());
    }

    /// Changes a member that is an object.
    pub(super) fn within(&mut self, name: &str, change: impl FnOnce(&mut Object<'_>)) {
        let Some(member) = self.get(name).filter(|member| member.is_object()) else { return };
        let mut member = Object::of(member);
        change(&mut member);
        if let Some(changed) = member.into_changed() {
            self.set(name, &changed);
        }
    }

    /// Changes the elements of a member that is a list, and keeps those for
    /// which `admit` returns true.
    pub(super) fn each(&mut self, name: &str, mut admit: impl FnMut(&mut Object<'_>) -> bool) {
        let Some(list) = self.get(name).filter(|list| list.is_array()) else { return };
        let mut kept: Vec<Cow<'_, [u8]>> = Vec::new();
        let mut is_changed = false;
        for element in list.elements() {
            let mut object = Object::of(element);
            if !admit(&mut object) {
                is_changed = true;
                continue;
            }
            match object.into_changed() {
                None => kept.push(Cow::Borrowed(element.bytes())),
                Some(changed) => {
                    is_changed = true;
                    kept.push(Cow::Owned(changed));
                }
            }
        }
        if is_changed {
            let list = [b"[", kept.join(&b","[..]).as_slice(), b"]"].concat();
            self.set(name, &list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(source: &str, change: impl FnOnce(&mut Object<'_>)) -> String {
        let mut object = Object::of(Value::of(source.as_bytes()));
        change(&mut object);
        let changed = object.into_changed().unwrap_or_else(|| source.into());
        String::from_utf8(changed).unwrap()
    }

    #[test]
    fn a_change_touches_one_value() {
        let source = r#" {"a" : {"b":[1, {"c":2},3 ]} ,"d":1.0} "#;
        assert_eq!(changed(source, |object| object.set("d", b"[]")), source.replace("1.0", "[]").trim());
        assert_eq!(
            changed(source, |object| object.set("x", b"0")),
            r#"{"x":0,"a" : {"b":[1, {"c":2},3 ]} ,"d":1.0}"#
        );
        assert_eq!(changed("{}", |object| object.set("x", b"0")), r#"{"x":0}"#);
        assert_eq!(changed("[]", |object| object.set("x", b"0")), "[]");
        assert_eq!(changed(source, |object| object.remove(&["a"])), r#"{"d":1.0}"#);
        let inner = |object: &mut Object<'_>| {
            object.within("a", |a| {
                a.each("b", |element| {
                    element.set("c", b"4");
                    element.value().bytes() != b"3"
                });
            });
        };
        assert_eq!(changed(source, inner), r#"{"a" : {"b":[1,{"c":4}]} ,"d":1.0}"#);
    }

    #[test]
    fn nothing_is_copied_without_need() {
        let mut object = Object::of(Value::of(br#"{"a":{"b":[{}]}}"#));
        object.within("a", |a| a.each("b", |_| true));
        assert_eq!(object.into_changed(), None);
    }
}
