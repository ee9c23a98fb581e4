"""Where the policy runs. `local`: in the actor's own thread. `server`, asked by a `client`: for many actors at once."""
