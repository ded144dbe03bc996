//! A failure that lasts is reported when it begins, when its reason changes and when it ends, not with every attempt.

#[derive(Debug, Default)]
pub struct Complaint {
    reason: Option<String>,
}

impl Complaint {
    /// Returns whether this failure is to be reported.
    pub fn failed(&mut self, reason: &str) -> bool {
        let new = self.reason.as_deref() != Some(reason);
        if new {
            self.reason = Some(reason.to_owned());
        }
        new
    }

    /// Returns whether something failed before, so that its end is to be reported.
    pub fn succeeded(&mut self) -> bool {
        self.reason.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_reported_once_and_so_is_the_end() {
        let mut complaint = Complaint::default();
        assert!(!complaint.succeeded(), "nothing has failed yet");
        assert!(complaint.failed("refused"));
        assert!(!complaint.failed("refused"));
        assert!(complaint.failed("timed out"));
        assert!(complaint.succeeded());
        assert!(!complaint.succeeded());
        assert!(complaint.failed("timed out"), "it begins again");
    }
}
