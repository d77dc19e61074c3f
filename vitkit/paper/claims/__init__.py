"""The paper's claims, one module each; `CLAIMS` of vitkit.paper.catalogue lists them."""
