//! A summary that a caller asks for: it is made now, however full the window is.

use super::compact::expect_version;
use super::interactive::{Ask, Claimed, FAILED, SUMMARY_POLL, Summarized, Terms};
use super::{Engine, Error};
use crate::clock::{self, Deadline};
use crate::limits::{SUMMARIZER_CLAIM, SUMMARIZER_SOURCE_TOKENS_MIN, SUMMARY_WAIT_MAX};
use crate::model::{CompressionPath, RecordedState, Version};
use crate::store::meta::SessionKey;
use std::ops::ControlFlow;
use std::time::Duration;

impl Engine {
    /// Puts a summary in place of all but the newest steps of an interactive session, or
    /// an extract if there is none in time. Neither a failure of late nor that compactions
    /// brought no relief holds it back. Nothing if nothing could leave, or if the window
    /// would not be smaller or was compacted by another meanwhile.
    pub(super) async fn summarize_now(
        &self,
        key: &SessionKey,
        instructions: &str,
        wait: Duration,
        expected_version: Option<Version>,
    ) -> Result<Option<RecordedState>, Error> {
        let (tip, _, _) = self.current(key).await?;
        let path = tip.session.path;
        if path != CompressionPath::Interactive {
            let path = path.as_str();
            let problem =
                format!("SUMMARIZE is for interactive sessions: on the {path} path no model is called");
            return Err(Error::invalid("strategy", problem));
        }
        // Turns that land from here on stay as they are after what is summarized, which was
        // paid for by then.
        expect_version(key, expected_version, &tip)?;
        let options = &self.inner.options;
        let wait = wait.min(SUMMARY_WAIT_MAX);
        let is_hurried = wait < options.compaction.wait();
        let ask = Ask { instructions, is_forced: true, is_hurried, deadline: Deadline::after(wait) };
        let terms = Terms { is_asked_for: true };
        let task = || self.summary_task(key, instructions, options.source_tokens, true);
        let Some(first) = task().await? else { return Ok(None) };
        let (why, is_wanting) = match () {
            () if options.summarizer.is_none() => ("there is no summarizer", false),
            () if first.source_tokens < SUMMARIZER_SOURCE_TOKENS_MIN => ("too little was said", false),
            () if !self.may_summarize() => ("the summarizer failed too often of late", true),
            () => match self.asked_summary(key, ask, terms).await? {
                ControlFlow::Break(recorded) => return Ok(recorded),
                ControlFlow::Continue(()) => ("no summary in time", true),
            },
        };
        // Turns may have landed meanwhile.
        let Some(task) = task().await? else { return Ok(None) };
        self.replace_middle(key, Summarized::without(task, why, is_wanting), terms).await
    }

    /// Has a summary made under a claim, and puts it in place, or an extract if the model
    /// failed. One that waits already will do if there are no instructions. Goes on with
    /// nothing if there was no time.
    async fn asked_summary(
        &self,
        key: &SessionKey,
        ask: Ask<'_>,
        terms: Terms,
    ) -> Result<ControlFlow<Option<RecordedState>>, Error> {
        let meta = self.inner.meta.as_ref();
        while self.may_summarize() && !ask.deadline.left().is_zero() {
            let now = self.now();
            let token = self.inner.entropy.id(now);
            if meta.claim_summary(key, &token, now, now.plus(SUMMARIZER_CLAIM)).await? {
                let put = self.put_under_claim(key, &token, ask, terms).await;
                // Only now: what others would have made meanwhile would be of what left.
                if let Err(error) = meta.drop_summary(key, &token).await {
                    tracing::warn!(session = %key.session, error = %error, "a claim was not dropped");
                }
                return put;
            }
            match meta.pending_summary(key).await? {
                Some((_, Some(_))) if ask.instructions.is_empty() => {
                    if let Some(adopted) = self.adopt(key, terms).await? {
                        return Ok(ControlFlow::Break(Some(adopted)));
                    }
                }
                // It was made without the instructions, or nobody makes one.
                Some((token, body)) if body.is_some() || token == FAILED => {
                    meta.drop_summary(key, &token).await?;
                }
                // Another makes one.
                _ => clock::sleep(SUMMARY_POLL).await,
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    async fn put_under_claim(
        &self,
        key: &SessionKey,
        token: &str,
        ask: Ask<'_>,
        terms: Terms,
    ) -> Result<ControlFlow<Option<RecordedState>>, Error> {
        match self.summary_under_claim(key, token, ask).await? {
            Claimed::Made(made) => self.replace_middle(key, *made, terms).await.map(ControlFlow::Break),
            Claimed::Kept | Claimed::ByOthers | Claimed::Nothing => Ok(ControlFlow::Continue(())),
        }
    }
}
