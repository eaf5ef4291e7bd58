//! Claims on the making of summaries, and the summaries that wait.

use crate::stores::{Database, Line, on_both_databases};
use turnkeep::clock::Micros;
use turnkeep::model::TenantId;
use turnkeep::store::MetaStore;
use turnkeep::store::meta::SessionKey;

on_both_databases![
    a_claim_stands_until_it_expires_and_its_holder_makes_it_longer,
    of_claims_at_the_same_time_one_is_granted,
    a_session_that_is_not_there_is_not_claimed,
    a_summary_is_kept_under_the_claim_that_stands,
    a_summary_that_waits_is_not_claimed_over,
    a_drop_takes_what_has_its_token_and_nothing_else,
    a_rest_takes_the_place_of_the_claim_that_stands_and_of_nothing_else,
    of_tenants_none_touches_the_others_claims,
];

async fn claim(meta: &dyn MetaStore, key: &SessionKey, token: &str, now: i64, until: i64) -> bool {
    meta.claim_summary(key, token, Micros(now), Micros(until)).await.unwrap()
}

async fn pending(meta: &dyn MetaStore, key: &SessionKey) -> Option<(String, Option<String>)> {
    meta.pending_summary(key).await.unwrap()
}

fn claimed(token: &str) -> (String, Option<String>) {
    (token.to_owned(), None)
}

fn waits(token: &str, body: &str) -> (String, Option<String>) {
    (token.to_owned(), Some(body.to_owned()))
}

async fn a_claim_stands_until_it_expires_and_its_holder_makes_it_longer(database: Database) {
    let meta = database.meta.as_ref();
    let key = Line::create(meta, "s").await.key;
    assert_eq!(pending(meta, &key).await, None);
    assert!(claim(meta, &key, "one", 10, 20).await);
    assert!(!claim(meta, &key, "two", 19, 40).await, "while it lives");
    assert_eq!(pending(meta, &key).await, Some(claimed("one")));
    assert!(claim(meta, &key, "one", 19, 30).await);
    assert!(!claim(meta, &key, "two", 29, 40).await);
    assert!(claim(meta, &key, "two", 30, 40).await, "from then on");
    assert_eq!(pending(meta, &key).await, Some(claimed("two")));
    assert!(!claim(meta, &key, "one", 31, 50).await, "it lost its claim");
    let other = Line::create(meta, "other").await.key;
    assert!(claim(meta, &other, "one", 31, 50).await, "each session has its own");
}

async fn of_claims_at_the_same_time_one_is_granted(database: Database) {
    let meta = database.meta.clone();
    let other = std::sync::Arc::new(database.another().await);
    for round in 0..8 {
        let key = Line::create(meta.as_ref(), &format!("s{round}")).await.key;
        let tasks = [(meta.clone(), "one"), (other.clone(), "two")].map(|(meta, token)| {
            let key = key.clone();
            tokio::spawn(async move { claim(meta.as_ref(), &key, token, 10, 20).await })
        });
        let mut granted = 0;
        for task in tasks {
            granted += usize::from(task.await.unwrap());
        }
        assert_eq!(granted, 1);
    }
}

async fn a_session_that_is_not_there_is_not_claimed(database: Database) {
    let meta = database.meta.as_ref();
    assert!(!claim(meta, &Line::new("nobody").key, "one", 10, 20).await);
    let key = Line::create(meta, "s").await.key;
    meta.delete_session(&key, false, Micros(10), Micros(20)).await.unwrap();
    assert!(!claim(meta, &key, "one", 10, 20).await);
    assert_eq!(pending(meta, &key).await, None);
}

async fn a_summary_is_kept_under_the_claim_that_stands(database: Database) {
    let meta = database.meta.as_ref();
    let key = Line::create(meta, "s").await.key;
    assert!(!meta.keep_summary(&key, "one", "{}").await.unwrap(), "without a claim");
    assert!(claim(meta, &key, "one", 10, 20).await);
    assert!(!meta.keep_summary(&key, "two", "{}").await.unwrap(), "under another's");
    assert!(claim(meta, &key, "two", 20, 30).await);
    assert!(!meta.keep_summary(&key, "one", "{}").await.unwrap(), "under one that was lost");
    assert_eq!(pending(meta, &key).await, Some(claimed("two")));
    assert!(meta.keep_summary(&key, "two", "{\"text\": \"ü\"}").await.unwrap());
    assert!(!meta.keep_summary(&key, "two", "{}").await.unwrap(), "once");
    assert_eq!(pending(meta, &key).await, Some(waits("two", "{\"text\": \"ü\"}")));
}

async fn a_summary_that_waits_is_not_claimed_over(database: Database) {
    let meta = database.meta.as_ref();
    let key = Line::create(meta, "s").await.key;
    assert!(claim(meta, &key, "one", 10, 20).await);
    assert!(meta.keep_summary(&key, "one", "{}").await.unwrap());
    for token in ["one", "two"] {
        assert!(!claim(meta, &key, token, 1_000, 2_000).await, "however old it is");
    }
    assert_eq!(pending(meta, &key).await, Some(waits("one", "{}")));
    meta.drop_summary(&key, "one").await.unwrap();
    assert!(claim(meta, &key, "two", 1_000, 2_000).await);
}

async fn a_drop_takes_what_has_its_token_and_nothing_else(database: Database) {
    let meta = database.meta.as_ref();
    let key = Line::create(meta, "s").await.key;
    let other = Line::create(meta, "other").await.key;
    meta.drop_summary(&key, "one").await.unwrap();
    for key in [&key, &other] {
        assert!(claim(meta, key, "one", 10, 20).await);
    }
    meta.drop_summary(&key, "two").await.unwrap();
    assert_eq!(pending(meta, &key).await, Some(claimed("one")));
    meta.drop_summary(&key, "one").await.unwrap();
    assert_eq!(pending(meta, &key).await, None);
    assert_eq!(pending(meta, &other).await, Some(claimed("one")), "another session's");
    // Who read a summary that was taken since does not drop the claim after it.
    assert!(claim(meta, &key, "two", 10, 20).await);
    assert!(meta.keep_summary(&key, "two", "{}").await.unwrap());
    meta.drop_summary(&key, "one").await.unwrap();
    assert_eq!(pending(meta, &key).await, Some(waits("two", "{}")));
    meta.drop_summary(&key, "two").await.unwrap();
    assert_eq!(pending(meta, &key).await, None);
}

async fn a_rest_takes_the_place_of_the_claim_that_stands_and_of_nothing_else(database: Database) {
    let meta = database.meta.as_ref();
    let key = Line::create(meta, "s").await.key;
    let rest =
        async |token: &str, until: i64| meta.rest_summary(&key, token, "rests", Micros(until)).await.unwrap();
    assert!(!rest("one", 50).await, "there is no claim");
    assert_eq!(pending(meta, &key).await, None);
    assert!(claim(meta, &key, "one", 10, 20).await);
    assert!(!rest("two", 50).await, "it has another token");
    assert_eq!(pending(meta, &key).await, Some(claimed("one")));
    assert!(rest("one", 50).await);
    assert_eq!(pending(meta, &key).await, Some(claimed("rests")));
    assert!(!claim(meta, &key, "two", 49, 90).await, "the time is its own");
    assert!(claim(meta, &key, "two", 50, 90).await);
    assert!(meta.keep_summary(&key, "two", "{}").await.unwrap());
    assert!(!rest("two", 99).await, "a summary is not lost to it");
    assert_eq!(pending(meta, &key).await, Some(waits("two", "{}")));
}

async fn of_tenants_none_touches_the_others_claims(database: Database) {
    let meta = database.meta.as_ref();
    let key = Line::create(meta, "s").await.key;
    assert!(claim(meta, &key, "one", 10, 20).await);
    let foreign = SessionKey { tenant: TenantId::parse("foreign").unwrap(), ..key.clone() };
    assert!(!claim(meta, &foreign, "two", 30, 40).await);
    assert!(!meta.keep_summary(&foreign, "one", "{}").await.unwrap());
    assert!(!meta.rest_summary(&foreign, "one", "rests", Micros(99)).await.unwrap());
    assert_eq!(pending(meta, &foreign).await, None);
    meta.drop_summary(&foreign, "one").await.unwrap();
    assert_eq!(pending(meta, &key).await, Some(claimed("one")));
}
