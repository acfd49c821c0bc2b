//! A limit in dollars holds only where the model has a price. Without one it is refused: when a session is made or changed,
//! and for each message before it is queued.

use crate::{Error, Result, services::ServiceSettings};
use ash_model::{AgentRuntime, SessionOptions};
use ash_store::AgentVersion;

impl ServiceSettings {
    /// Refuses limits in dollars of a session whose model has no price, unless nobody is paid.
    pub(crate) fn can_count_dollars(&self, version: &AgentVersion, options: &SessionOptions) -> Result<()> {
        let of_turns = options.turn_limits.and_then(|limits| limits.max_budget_usd);
        if options.max_budget_usd.or(of_turns).is_none() {
            return Ok(());
        }
        let unpriced = self.unpriced(ash_driver::driver(version.runtime).model(options));
        match unpriced.filter(|_| self.pays_somebody(version, options)) {
            Some(model) => Err(Error::Unpriced(model.to_owned())),
            None => Ok(()),
        }
    }

    /// The model, if nobody knows what it costs.
    pub(crate) fn unpriced<'m>(&self, model: Option<&'m str>) -> Option<&'m str> {
        model.filter(|model| self.prices.price_of(model).is_none())
    }

    /// Who answers offline costs nothing, whatever the model is called.
    fn pays_somebody(&self, version: &AgentVersion, options: &SessionOptions) -> bool {
        match version.runtime {
            AgentRuntime::Claude => true,
            AgentRuntime::Builtin => !matches!(self.provider(options, version.provider), Ok(None)),
        }
    }
}
