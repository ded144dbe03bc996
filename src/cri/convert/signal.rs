//! Stop signals by name.

use keelson_proto::runtime::v1::Signal;

use super::ConvertError;

/// The API writes SIGRTMIN+3 where the runtime's interface, whose names are identifiers, has SIGRTMINPLUS3.
pub fn stop_signal(name: Option<&str>) -> Result<Signal, ConvertError> {
    let Some(name) = name else { return Ok(Signal::RuntimeDefault) };
    Signal::from_str_name(&name.replace('+', "PLUS").replace('-', "MINUS"))
        .filter(|signal| *signal != Signal::RuntimeDefault)
        .ok_or_else(|| ConvertError::Signal(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_found_by_the_names_of_the_api() {
        assert_eq!(stop_signal(None), Ok(Signal::RuntimeDefault));
        assert_eq!(stop_signal(Some("SIGUSR1")), Ok(Signal::Sigusr1));
        assert_eq!(stop_signal(Some("SIGRTMIN")), Ok(Signal::Sigrtmin));
        assert_eq!(stop_signal(Some("SIGRTMIN+15")), Ok(Signal::Sigrtminplus15));
        assert_eq!(stop_signal(Some("SIGRTMAX-1")), Ok(Signal::Sigrtmaxminus1));
        for bad in ["", "TERM", "15", "SIGRTMIN+16", "RUNTIME_DEFAULT"] {
            assert_eq!(stop_signal(Some(bad)), Err(ConvertError::Signal(bad.into())));
        }
    }
}
