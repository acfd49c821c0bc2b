//! Budgets in dollars. They work only for models with a price, so others are refused: when a session is created or
//! changed, and for each message before it is queued.

use crate::{Error, Result, settings::ServiceSettings};
use ash_model::{AgentRuntime, SessionOptions};
use ash_store::AgentVersion;

impl ServiceSettings {
    /// Refuses a budget in dollars if the session's model has no price, unless its answers cost nothing.
    pub(crate) fn can_count_dollars(&self, version: &AgentVersion, options: &SessionOptions) -> Result<()> {
        let of_turns = options.turn_limits.and_then(|limits| limits.max_budget_usd);
        if options.max_budget_usd.or(of_turns).is_none() {
            return Ok(());
        }
        let unpriced = self.unpriced(ash_driver::driver(version.runtime).model(options));
        match unpriced.filter(|_| self.answers_cost_money(version, options)) {
            Some(model) => Err(Error::Unpriced(model.to_owned())),
            None => Ok(()),
        }
    }

    /// The model, if it has no price.
    pub(crate) fn unpriced<'m>(&self, model: Option<&'m str>) -> Option<&'m str> {
        model.filter(|model| self.prices.price_of(model).is_none())
    }

    /// Whether answers cost money. The offline provider costs nothing, whatever the model is called.
    fn answers_cost_money(&self, version: &AgentVersion, options: &SessionOptions) -> bool {
        match version.runtime {
            AgentRuntime::Claude => true,
            AgentRuntime::Builtin => !matches!(self.provider(options, version.provider), Ok(None)),
        }
    }
}
