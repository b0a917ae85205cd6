"""Pages made of stores and registries: the report of a study, results, catalogues."""
