//! Pods that are gone.

use std::collections::VecDeque;
use std::sync::Arc;

use super::PodTimeline;

/// How many are remembered.
pub const REMEMBERED: usize = 100;

/// Oldest first.
#[derive(Debug, Default)]
pub struct Remembered(VecDeque<Arc<PodTimeline>>);

impl Remembered {
    /// The oldest is forgotten for it when there are enough. A pod that came up once more only to be taken down is remembered
    /// as it was before: the last word of a watch may come when the pod is gone already.
    pub fn add(&mut self, gone: PodTimeline) {
        if gone.only_ended() && self.0.iter().any(|known| known.uid == gone.uid) {
            return;
        }
        while self.0.len() >= REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(Arc::new(gone));
    }

    /// Latest first.
    pub fn latest(&self) -> impl Iterator<Item = &Arc<PodTimeline>> {
        self.0.iter().rev()
    }
}
