//! An object of a payload that is looked through and, where something is wrong
//! with it, changed: one value at a time, every other byte as it was.

use crate::format::json::Value;
use std::borrow::Cow;

/// A JSON value of a payload, an object as a rule; borrowed as long as nothing
/// is changed.
#[derive(Clone, Debug)]
pub(super) struct Object<'a>(Cow<'a, [u8]>);

impl<'a> Object<'a> {
    pub(super) fn of(source: &'a [u8]) -> Self {
        Self(Cow::Borrowed(source))
    }

    pub(super) fn into_bytes(self) -> Cow<'a, [u8]> {
        self.0
    }

    pub(super) fn value(&self) -> Value<'_> {
        Value::of(&self.0)
    }

    pub(super) fn get(&self, name: &str) -> Option<Value<'_>> {
        self.value().member(name)
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
        self.0 = Cow::Owned(token.into());
    }

    /// Gives a member another value, or adds it.
    pub(super) fn set(&mut self, name: &str, token: &[u8]) {
        let (before, after) = match self.get(name) {
            Some(value) => (value.range().start, value.range().end),
            None => return self.add(name, token),
        };
        let [before, after] = [self.0.get(..before), self.0.get(after..)].map(Option::unwrap_or_default);
        self.0 = Cow::Owned([before, token, after].concat());
    }

    fn add(&mut self, name: &str, token: &[u8]) {
        let value = self.value();
        let separator: &[u8] = if value.members().next().is_some() { b"," } else { b"" };
        let Some(rest) = value.is_object().then(|| self.0.get(value.range().start + 1..)).flatten() else {
            return;
        };
        let member = [b"{\"", name.as_bytes(), b"\":", token].concat();
        self.0 = Cow::Owned([member.as_slice(), separator, rest].concat());
    }

    /// Takes members away.
    pub(super) fn remove(&mut self, names: &[&str]) {
        let mut kept = Vec::new();
        for (key, value) in self.value().members() {
            if !names.iter().any(|name| key.is_text(name)) {
                kept.push(self.0.get(key.range().start..value.range().end).unwrap_or_default());
            }
        }
        self.0 = Cow::Owned([b"{", kept.join(&b","[..]).as_slice(), b"}"].concat());
    }

    /// Changes a member that is an object.
    pub(super) fn within(&mut self, name: &str, change: impl FnOnce(&mut Object<'_>)) {
        let Some(member) = self.get(name).filter(|member| member.is_object()) else { return };
        let mut member = Object::of(member.bytes());
        change(&mut member);
        if let Cow::Owned(changed) = member.0 {
            self.set(name, &changed);
        }
    }

    /// Changes the elements of a member that is a list, and keeps those for
    /// which `admit` returns true.
    pub(super) fn each(&mut self, name: &str, mut admit: impl FnMut(&mut Object<'_>) -> bool) {
        let Some(list) = self.get(name).filter(|list| list.is_array()) else { return };
        let mut kept = Vec::new();
        let mut is_changed = false;
        for element in list.elements() {
            let mut element = Object::of(element.bytes());
            if admit(&mut element) {
                is_changed |= matches!(element.0, Cow::Owned(_));
                kept.push(element.0);
            } else {
                is_changed = true;
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
        let mut object = Object::of(source.as_bytes());
        change(&mut object);
        String::from_utf8(object.into_bytes().into_owned()).unwrap()
    }

    #[test]
    fn a_change_touches_one_value() {
        let source = r#" {"a" : {"b":[1, {"c":2},3 ]} ,"d":1.0} "#;
        assert_eq!(changed(source, |object| object.set("d", b"[]")), source.replace("1.0", "[]"));
        assert_eq!(
            changed(source, |object| object.set("x", b"0")),
            r#"{"x":0,"a" : {"b":[1, {"c":2},3 ]} ,"d":1.0} "#
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
        assert_eq!(changed(source, inner), r#" {"a" : {"b":[1,{"c":4}]} ,"d":1.0} "#);
    }

    #[test]
    fn nothing_is_copied_without_need() {
        let mut object = Object::of(br#"{"a":{"b":[{}]}}"#);
        object.within("a", |a| a.each("b", |_| true));
        assert!(matches!(object.into_bytes(), Cow::Borrowed(_)));
    }
}
