package shop;

import jakarta.persistence.*;

@Entity
@Table(name = "orders")
public class Order {
    @Id
    @LeafId(tag = "orders")
    public Long id;

    public String item;

    public Order() {}

    public Order(String item) {
        this.item = item;
    }
}
